"""The pages, a module each: routes, handlers that read the cluster, and values for a template."""
