"""Reports: tables and figures from results files."""
