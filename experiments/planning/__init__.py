"""Plans of deployments: mechanisms compared at a level of privacy, and whether the noise leaves a signal."""
