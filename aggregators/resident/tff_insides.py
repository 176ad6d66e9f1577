"""What depends on the insides of TFF 0.87, where it has no public way; a test notices when TFF changes."""

import gc

import tensorflow_federated as tff

# Each context of TFF has a class of its own of this name, which starts its worker.
_MANAGER = "local_cpp_executor_factory.<locals>.ServiceManager"


def leave_managers() -> int:
    """Lets objects that end TFF's workers do nothing when they are destroyed, and returns their number.

    At the end of a program they would look for modules that are gone, and Python would print the error.
    """
    managers = [candidate for candidate in gc.get_objects() if type(candidate).__qualname__ == _MANAGER]
    for manager in managers:
        del type(manager).__del__
    return len(managers)


def thresholds(factory: tff.aggregators.SecureSumFactory) -> tuple[object, object]:
    """Returns the upper and the lower threshold of a secure sum."""
    return factory._upper_bound_threshold, factory._lower_bound_threshold
