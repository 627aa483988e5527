"""Operations on CPU kernels of our own (relevo_native): no torch, one native call per step."""
