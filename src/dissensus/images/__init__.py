"""Image collections: a folder, a list, a table, tars, arrays or a data set, read one by one by number.

    images = ImageSet.find("photos")                  # photos/cat/1.jpg, photos/dog/2.jpg, ...
    images.image(0)                                   # RGB; raises BadImage where the file is no good
    train, test = images.part(0, 0.9, seed=0), images.part(0.9, 1, seed=0)

Listing an image takes its size, never its content; a set can be pickled and sent to worker processes.
"""

from dissensus.images.decoding import SUFFIXES, BadImage, decode, to_rgb
from dissensus.images.folders import walk
from dissensus.images.imageset import ImageSet
from dissensus.images.readers import read_image

__all__ = ["SUFFIXES", "BadImage", "ImageSet", "decode", "read_image", "to_rgb", "walk"]
