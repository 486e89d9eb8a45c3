/* conv_end.h: ends what conv_planes.inc, conv_tile.inc and conv_wgrad.inc were included for. */
#undef LANES
#undef NR
#undef SQUARE
#undef T
#undef COMPUTE
#undef NATIVE
#undef NAMED
