"""Bundles: deployments, and trained models, as files.

Nothing here imports TensorFlow Federated before it is needed.
"""

from ..output.files import check_new_folder as check_new_folder
from ._source import Source as Source
from ._source import check_trained as check_trained
from ._source import read_source as read_source
from .device_policy import DEVICE_POLICY as DEVICE_POLICY
from .device_policy import DevicePolicy as DevicePolicy
from .device_policy import check_task_name as check_task_name
