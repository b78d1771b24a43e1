//! Integer arithmetic that wraps, and divides toward minus infinity.

use flambeau_tensor::Element;

/// An integer element type.
pub(crate) trait Int: Element + Ord {
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    /// `floor(a / b)`; 0 if `b` is.
    fn floor_div(self, b: Self) -> Self;
    /// `a mod b` with the sign of `b`; 0 if `b` is.
    fn floor_rem(self, b: Self) -> Self;
    /// By repeated squaring; 0 for a negative exponent.
    fn power(self, exponent: Self) -> Self;
    fn neg(self) -> Self;
    fn magnitude(self) -> Self;
    fn signum_of(self) -> Self;
    fn invert(self) -> Self;
    fn and(self, b: Self) -> Self;
    fn or(self, b: Self) -> Self;
    fn xor(self, b: Self) -> Self;
    fn to_i64(self) -> i64;
}

macro_rules! ints {
    ($($t:ty),*) => { $(impl Int for $t {
        #[inline(always)]
        fn add(self, b: Self) -> Self { self.wrapping_add(b) }
        #[inline(always)]
        fn sub(self, b: Self) -> Self { self.wrapping_sub(b) }
        #[inline(always)]
        fn mul(self, b: Self) -> Self { self.wrapping_mul(b) }
        #[inline(always)]
        fn floor_div(self, b: Self) -> Self {
            if b == 0 {
                return 0;
            }
            let q = self.wrapping_div(b);
            let r = self.wrapping_rem(b);
            if r != 0 && ((r < 0) != (b < 0)) { q.wrapping_sub(1) } else { q }
        }
        #[inline(always)]
        fn floor_rem(self, b: Self) -> Self {
            if b == 0 {
                return 0;
            }
            let r = self.wrapping_rem(b);
            if r != 0 && ((r < 0) != (b < 0)) { r.wrapping_add(b) } else { r }
        }
        fn power(self, exponent: Self) -> Self {
            if exponent < 0 {
                return 0;
            }
            let (mut result, mut base, mut rest): ($t, $t, $t) = (1, self, exponent);
            while rest != 0 {
                if rest & 1 == 1 {
                    result = result.wrapping_mul(base);
                }
                base = base.wrapping_mul(base);
                rest >>= 1;
            }
            result
        }
        #[inline(always)]
        fn neg(self) -> Self { self.wrapping_neg() }
        #[inline(always)]
        fn magnitude(self) -> Self { if self < 0 { self.wrapping_neg() } else { self } }
        #[inline(always)]
        fn signum_of(self) -> Self { if self > 0 { 1 } else if self < 0 { (0 as $t).wrapping_sub(1) } else { 0 } }
        #[inline(always)]
        fn invert(self) -> Self { !self }
        #[inline(always)]
        fn and(self, b: Self) -> Self { self & b }
        #[inline(always)]
        fn or(self, b: Self) -> Self { self | b }
        #[inline(always)]
        fn xor(self, b: Self) -> Self { self ^ b }
        #[inline(always)]
        fn to_i64(self) -> i64 { self as i64 }
    })* };
}
#[allow(unused_comparisons, reason = "one body for signed and unsigned types")]
mod impls {
    use super::Int;
    ints!(u8, i8, i16, u16, i32, i64, u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_follows_the_divisor_sign() {
        let check = |a: i32, b: i32, q: i32, r: i32| assert_eq!((a.floor_div(b), a.floor_rem(b)), (q, r), "{a} by {b}");
        check(7, 2, 3, 1);
        check(-7, 2, -4, 1);
        check(7, -2, -4, -1);
        check(-7, -2, 3, -1);
        check(i32::MIN, -1, i32::MIN, 0);
        check(5, 0, 0, 0);
        assert_eq!((200u8.floor_div(7), 200u8.floor_rem(7)), (28, 4));
    }

    #[test]
    fn powers_wrap() {
        assert_eq!((3i8.power(5), 2i32.power(-1), 2u8.power(8), 0i64.power(0)), (-13, 0, 0, 1));
    }
}
