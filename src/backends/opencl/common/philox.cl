/* philox.cl: Philox 4x32-10, bitwise identical with base/philox.h on every backend. */

/* Four words from a 64-bit counter and a 64-bit key. */
static uint4 philox(ulong seed, ulong counter)
{
    uint k0 = (uint)seed, k1 = (uint)(seed >> 32);
    uint4 c = (uint4)((uint)counter, (uint)(counter >> 32), 0u, 0u);
    for (int round = 0; round < 10; round++) {
        uint high0 = mul_hi(0xD2511F53u, c.x), high1 = mul_hi(0xCD9E8D57u, c.z);
        c = (uint4)(high1 ^ c.y ^ k0, 0xCD9E8D57u * c.z, high0 ^ c.w ^ k1, 0xD2511F53u * c.x);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* A word as a float in [0, 1): its upper 24 bits, exactly. */
static float unit_f32(uint word)
{
    return (float)(word >> 8) * 0x1p-24f;
}
