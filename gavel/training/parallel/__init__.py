"""Models that are split over the ranks of a job: schedules of their stages, and the pipeline that runs them."""
