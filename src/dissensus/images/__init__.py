"""Image collections: a folder, a list, a table, tars, arrays or a data set, read one by one by index.

    images = ImageSet.find("photos")                  # photos/cat/1.jpg, photos/dog/2.jpg, ...
    images.image(0)                                   # RGB; raises BadImage if the file cannot be decoded
    train, test = images.part(0, 0.9, seed=0), images.part(0.9, 1, seed=0)

Listing an image reads its size, never its content; a set can be pickled and sent to worker processes.
"""

from dissensus.images._lists import IMAGE_COLUMNS
from dissensus.images._paths import LISTINGS, walk
from dissensus.images.decoding import SUFFIXES, BadImage, decode, read_image, to_rgb
from dissensus.images.imageset import ImageSet
from dissensus.images.thumbnails import thumbnail

__all__ = [
    "IMAGE_COLUMNS",
    "LISTINGS",
    "SUFFIXES",
    "BadImage",
    "ImageSet",
    "decode",
    "read_image",
    "thumbnail",
    "to_rgb",
    "walk",
]
