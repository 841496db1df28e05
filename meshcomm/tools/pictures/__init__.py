"""Pictures of layouts and plans, as text and as SVG; pure, without data and without MPI."""
