"""The wire: protobuf definitions and the code generated from them. Nothing else."""
