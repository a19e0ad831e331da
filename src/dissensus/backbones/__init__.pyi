from .backbone import Backbone as Backbone
from .backbone import BackboneDescription as BackboneDescription
from .backbone import create as create
from .backbone import restore as restore
from .weights import LITES as LITES
from .weights import known as known
