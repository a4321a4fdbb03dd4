"""The earlier name of `kafscale.values.registry`, which users' programs import."""

from kafscale.values.registry import OAuthOptions, RegistryClient, RegistryOptions

__all__ = ["OAuthOptions", "RegistryClient", "RegistryOptions"]
