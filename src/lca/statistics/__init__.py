"""Class statistics: Gaussians, means, how they follow the backbone, and how far things lie from what is known."""
