"""A reference coordinator: drives a bundle over simulated devices, hostile ones too, for tests and for reading.

A production server has to authenticate real devices, and keeps its state on several machines. What it
must not do otherwise is what is here: one state once, on disk before it is shown, and participation checked twice.
"""

from ._coordinator import Coordinator as Coordinator
from ._coordinator import Tally as Tally
from ._devices import DeviceSettings as DeviceSettings
from ._devices import Fleet as Fleet
from ._devices import Report as Report
from ._hostile import MALFORMED as MALFORMED
from ._hostile import POISONING as POISONING
from ._hostile import SILENT as SILENT
from ._hostile import HostileFleet as HostileFleet
