"""Bundles: deployments as files, which are written, verified, and run without TFF.

Nothing here imports TensorFlow Federated before it is needed: a server that runs a bundle does not have it.
"""

from ..output.files import check_new_folder as check_new_folder
from ._checks import REBUILT as REBUILT
from ._checks import Refusal as Refusal
from ._checks import Verification as Verification
from ._checks import check_files as check_files
from ._checks import refusals as refusals
from ._device_file import device_policy_schema as device_policy_schema
from ._device_file import task_name_of as task_name_of
from ._manifest import DEVICE_POLICY as DEVICE_POLICY
from ._manifest import Manifest as Manifest
from ._manifest import read_manifest as read_manifest
from ._policies import DevicePolicy as DevicePolicy
from ._policies import ParticipationPolicy as ParticipationPolicy
from ._policies import check_task_name as check_task_name
from ._policies import read_policy as read_policy
from ._source import Source as Source
from ._source import check_trained as check_trained
from ._source import read_source as read_source
from .runner import MANIFEST as MANIFEST
