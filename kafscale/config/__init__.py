"""Settings and limits: what can be set, its default, its trade-off, and where a value came from.

Imports the standard library, attrs and `kafscale.errors` only.
"""

from __future__ import annotations

from kafscale.config.limits import CoordinatorSettings as CoordinatorSettings
from kafscale.config.limits import Limits as Limits
from kafscale.config.option import Option as Option
from kafscale.config.security_settings import SaslSettings as SaslSettings
from kafscale.config.security_settings import SslSettings as SslSettings
from kafscale.config.settings import BUCKET_OPTIONS as BUCKET_OPTIONS
from kafscale.config.settings import Settings as Settings
from kafscale.config.settings import flags_of as flags_of
from kafscale.config.settings import options as options
from kafscale.config.sources import ADMIN_CA_VARIABLE as ADMIN_CA_VARIABLE
from kafscale.config.sources import BOOTSTRAP_VARIABLE as BOOTSTRAP_VARIABLE
from kafscale.config.sources import COMMAND_CONFIG_VARIABLE as COMMAND_CONFIG_VARIABLE
from kafscale.config.sources import CONFIG_VARIABLE as CONFIG_VARIABLE
from kafscale.config.sources import USER_PASSWORD_VARIABLE as USER_PASSWORD_VARIABLE
from kafscale.config.sources import Loaded as Loaded
from kafscale.config.sources import load as load
from kafscale.config.units import GIB as GIB
from kafscale.config.units import MIB as MIB
from kafscale.config.units import parse_duration as parse_duration
from kafscale.config.units import parse_size as parse_size
from kafscale.config.values import WILDCARD_HOSTS as WILDCARD_HOSTS
from kafscale.config.values import Address as Address
from kafscale.config.values import AuthorizerKind as AuthorizerKind
from kafscale.config.values import Durability as Durability
from kafscale.config.values import IpConnections as IpConnections
from kafscale.config.values import Listener as Listener
from kafscale.config.values import ListenerProtocol as ListenerProtocol
from kafscale.config.values import LogFormat as LogFormat
from kafscale.config.values import LogLevel as LogLevel
from kafscale.config.values import SaslMechanism as SaslMechanism
from kafscale.config.values import SecurityProtocol as SecurityProtocol
from kafscale.config.values import SslClientAuth as SslClientAuth
from kafscale.config.values import SslVersion as SslVersion
from kafscale.config.values import StoreEncryption as StoreEncryption
from kafscale.config.values import StoreUrl as StoreUrl
from kafscale.config.values import canonical_ip as canonical_ip
from kafscale.config.values import has_host as has_host
from kafscale.config.values import is_endpoint as is_endpoint
from kafscale.config.values import split_list as split_list
from kafscale.config.values import split_url as split_url
