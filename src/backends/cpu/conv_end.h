/* conv_end.h: ends what conv_planes.h, conv_tile.h and conv_weight.h were included for. */
#undef LANES
#undef NR
#undef SQUARE
#undef T
#undef COMPUTE
#undef NATIVE
#undef NAMED
