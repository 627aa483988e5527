"""Operations on torch tensors: the reference, on CPUs and CUDA devices. The only package that imports torch."""
