"""Image collections: a folder, a list, a table, tars, arrays or a data set, read one by one by index; or a stream.

    images = ImageSet.find("photos")                  # photos/cat/1.jpg, photos/dog/2.jpg, ...
    images.image(0)                                   # RGB; raises BadImage if the file cannot be decoded
    train, test = images.part(0, 0.9, seed=0), images.part(0.9, 1, seed=0)
    stream = ImageStream.find("s3://bucket/train-{000..999}.tar")      # shard by shard, never listed
    next(stream.samples(0))                           # name, image or error, label, digest

Paths are local or fsspec URLs. Listing an image reads its size, never its content; sets and streams can be pickled and
sent to worker processes.
"""

from dissensus.images._files import lines_of
from dissensus.images._lists import IMAGE_COLUMNS
from dissensus.images._paths import LISTINGS, is_one_image, walk
from dissensus.images._patterns import is_stream
from dissensus.images._shards import Streamed
from dissensus.images.decoding import (
    SUFFIXES,
    BadImage,
    decode,
    digest,
    load_image,
    pixel_digest,
    read_image,
    size_of,
    to_rgb,
)
from dissensus.images.imageset import ImageSet
from dissensus.images.names import Names
from dissensus.images.stream import ImageStream
from dissensus.images.thumbnails import thumbnail

__all__ = [
    "IMAGE_COLUMNS",
    "LISTINGS",
    "SUFFIXES",
    "BadImage",
    "ImageSet",
    "ImageStream",
    "Names",
    "Streamed",
    "decode",
    "digest",
    "is_one_image",
    "is_stream",
    "lines_of",
    "load_image",
    "pixel_digest",
    "read_image",
    "size_of",
    "thumbnail",
    "to_rgb",
    "walk",
]
