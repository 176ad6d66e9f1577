"""A reference coordinator: runs a bundle with simulated devices, hostile ones included, for tests and for reading.

A production server also authenticates real devices, and keeps its state on several machines. Like this one, it must
step each state once, write it to disk before publishing it, and check participation on the device and on the server.
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
