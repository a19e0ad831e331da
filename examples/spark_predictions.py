"""Predict images with Apache Spark: the detector is loaded once per executor by `predict_batch_udf`.

Needs PySpark and Java (`pip install pyspark`). Run and images are paths or URLs that every executor can reach.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np


# %% What each executor does: load the detector, then map batches of encoded images to columns.
def make_predictor(run: str) -> Callable[[], Callable[[np.ndarray], dict[str, np.ndarray]]]:
    """Return the function that `predict_batch_udf` calls once per executor."""

    def make() -> Callable[[np.ndarray], dict[str, np.ndarray]]:
        from dissensus import BatchPredictor

        predictor = BatchPredictor(run, "content")

        def predict(content: np.ndarray) -> dict[str, np.ndarray]:
            answers = predictor({"content": content})
            return {
                "label": answers["class"].astype(str),
                "p_value": answers["p_value"],
                "verdict": answers["verdict"].astype(str),
            }

        return predict

    return make


# %% The job: read files, predict, keep what is out of distribution.
def out_of_distribution(spark: Any, run: str, images: str) -> Any:
    """Return a DataFrame of the images below a folder that are called out, with their p-values."""
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import FloatType, StringType, StructField, StructType

    columns = [("label", StringType()), ("p_value", FloatType()), ("verdict", StringType())]
    schema = StructType([StructField(name, kind) for name, kind in columns])
    verdict = predict_batch_udf(make_predictor(run), return_type=schema, batch_size=64)
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(images)
    predicted = files.select("path", verdict("content").alias("answer")).select("path", "answer.*")
    return predicted.filter("verdict = 'out'").orderBy("p_value")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print("usage: python examples/spark_predictions.py RUN IMAGES")
    else:
        from pyspark.sql import SparkSession

        session = SparkSession.builder.appName("dissensus").getOrCreate()
        out_of_distribution(session, *sys.argv[1:]).show(20, truncate=False)
