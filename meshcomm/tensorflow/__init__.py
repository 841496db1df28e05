"""TensorFlow's names: tensors, topologies and logical devices."""
