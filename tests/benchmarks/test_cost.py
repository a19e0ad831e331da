"""The cost of large jobs: two rows by hand, and the table in the documents is the one that is computed."""

from pathlib import Path

import pytest

from benchmarks import cost

SCALE = Path(__file__).parents[2] / "docs" / "scale.md"


def cells(job, gpus):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in cost.table().splitlines()]
    (row,) = [dict(zip(rows[0], row, strict=True)) for row in rows[2:] if row[:2] == [job, str(gpus)]]
    return row


def test_imagenet_21k_on_one_gpu():
    extract = 14.2e6 / 2583  # seconds
    weights = 2 * 768 * 21_841  # of two active members
    step = 4 * 4096 * weights / 40e12 + 7 * 4 * weights / 0.8e12  # two matrix products; the optimiser's passes
    train = 10 * 14.2e6 / 4096 * step
    row = cells("ImageNet-21k", 1)
    assert row["extract"] == f"{extract / 3600:.1f} h" == "1.5 h"
    assert row["train"] == f"{train / 60:.1f} min" == "8.6 min"
    assert row["features"] == f"{14.2e6 * 768 * 2 / 1e9:.0f} GB" == "22 GB"
    assert row["cost"] == f"${(extract + train) / 3600 * 0.8:.0f}" == "$1"


def test_a_billion_images_on_64_gpus():
    extract = 1e9 / 2583 / 64
    weights = 2 * 768 * 1000
    step = 4 * 4096 / 64 * weights / 40e12 + 7 * 4 * weights / 0.8e12 + 2 * 4 * weights / 12e9  # and the exchange
    train = 1e9 / 4096 * step
    assert train > 1e9 * 768 * 2 / 3e9 / 8  # reading the features, on eight nodes
    row = cells("1e9 images", 64)
    assert row["extract"] == f"{extract / 3600:.1f} h" == "1.7 h"
    assert row["train"] == f"{train / 60:.1f} min" == "4.4 min"
    assert row["cores to decode"] == f"{64 * 2583 / 276:.0f}" == "599"
    assert row["images read"] == f"{64 * 2583 * 110e3 / 1e9:.1f} GB/s" == "18.2 GB/s"
    assert row["cost"] == f"${(extract + train) / 3600 * 64 * 0.8:.0f}" == "$90"


@pytest.mark.parametrize("gpus", [1, 8])
def test_training_waits_for_the_disk_where_steps_are_shorter(gpus):
    assert cost.JOBS[1].train_seconds(gpus) == pytest.approx(1e9 * 768 * 2 / 3e9)


def test_the_documents_have_the_table():
    assert f"\n{cost.table()}\n" in SCALE.read_text()
