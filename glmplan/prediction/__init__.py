"""From a deployment and a load to figures with intervals: single questions, rows of tables, own sites."""
