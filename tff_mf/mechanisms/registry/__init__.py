"""Kinds of mechanisms: what each one has, registered in one call, whether it is part of this package or not."""

from tff_mf.mechanisms.registry._codec import Codec as Codec
from tff_mf.mechanisms.registry._codec import whole_number as whole_number
from tff_mf.mechanisms.registry._grid_recursion import grid_recursion as grid_recursion
from tff_mf.mechanisms.registry._kinds import MechanismKind as MechanismKind
from tff_mf.mechanisms.registry._kinds import Search as Search
from tff_mf.mechanisms.registry._kinds import UnknownKindError as UnknownKindError
from tff_mf.mechanisms.registry._kinds import find as find
from tff_mf.mechanisms.registry._kinds import kinds as kinds
from tff_mf.mechanisms.registry._kinds import named as named
from tff_mf.mechanisms.registry._kinds import register_mechanism as register_mechanism
from tff_mf.mechanisms.registry._kinds import registered as registered
from tff_mf.mechanisms.registry._plugins import import_plugin as import_plugin
from tff_mf.mechanisms.registry._plugins import import_plugins as import_plugins
from tff_mf.mechanisms.registry._tensors import content_digest as content_digest
from tff_mf.mechanisms.registry._tensors import mechanism_of as mechanism_of
from tff_mf.mechanisms.registry._tensors import tensors_of as tensors_of
