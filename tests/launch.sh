#!/bin/sh
# Starts a test program, under $TARN_TEST_LAUNCHER when that is set (for example "valgrind --error-exitcode=9").
# The launcher is split into words on purpose.
# shellcheck disable=SC2086
exec $TARN_TEST_LAUNCHER "$@"
