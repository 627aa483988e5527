"""Operations a decoder is made of, over opaque buffers: one Protocol, one package per backend."""
