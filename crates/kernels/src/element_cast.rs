//! Conversion of single elements between types.

use flambeau_tensor::{Bool, Element};
use half::{bf16, f16};

use crate::Float;

/// Conversion of one element. Floats truncate toward zero, through i64 for u32 and i64 and through
/// i32 for other integers. NaN and values outside that type's range give its smallest integer, as
/// on x86. Integers wrap. Results in f16 and bf16 round to nearest even. Nonzero values, NaN
/// included, are true.
pub trait CastTo<D>: Element {
    /// The converted value.
    fn cast_to(self) -> D;
}

macro_rules! int_to_int {
    ($from:ty => $($to:ty),*) => { $(impl CastTo<$to> for $from {
        #[inline(always)]
        fn cast_to(self) -> $to { self as $to }
    })* };
}

/// Converts a float toward zero.
macro_rules! toward_zero {
    ($name:ident -> $t:ty) => {
        #[inline(always)]
        fn $name(x: f32) -> $t {
            // The smallest integer is a float, the one above the largest its negative.
            let low = <$t>::MIN as f32;
            if x >= low && x < -low { x as $t } else { <$t>::MIN }
        }
    };
}
toward_zero!(to_i32 -> i32);
toward_zero!(to_i64 -> i64);

macro_rules! ints {
    ($($t:ty: $through:ident),*) => { $(
        int_to_int!($t => u8, i8, i16, u16, i32, u32, i64, f32);
        impl CastTo<f16> for $t {
            #[inline(always)]
            fn cast_to(self) -> f16 { <f16 as Float>::from_f32(self as f32) }
        }
        impl CastTo<bf16> for $t {
            #[inline(always)]
            fn cast_to(self) -> bf16 { <bf16 as Float>::from_f32(self as f32) }
        }
        impl CastTo<Bool> for $t {
            #[inline(always)]
            fn cast_to(self) -> Bool { Bool::from(self != 0) }
        }
        impl CastTo<$t> for Bool {
            #[inline(always)]
            fn cast_to(self) -> $t { self.get() as $t }
        }
        impl CastTo<$t> for f32 {
            #[inline(always)]
            fn cast_to(self) -> $t { $through(self) as $t }
        }
        impl CastTo<$t> for f16 {
            #[inline(always)]
            fn cast_to(self) -> $t { $through(Float::to_f32(self)) as $t }
        }
        impl CastTo<$t> for bf16 {
            #[inline(always)]
            fn cast_to(self) -> $t { $through(Float::to_f32(self)) as $t }
        }
    )* };
}
ints!(u8: to_i32, i8: to_i32, i16: to_i32, u16: to_i32, i32: to_i32, u32: to_i64, i64: to_i64);

macro_rules! float_to_float {
    ($from:ty => $($to:ty),*) => { $(impl CastTo<$to> for $from {
        #[inline(always)]
        fn cast_to(self) -> $to { <$to as Float>::from_f32(Float::to_f32(self)) }
    })* };
}
float_to_float!(f32 => f32, f16, bf16);
float_to_float!(f16 => f32, bf16);
float_to_float!(bf16 => f32, f16);

macro_rules! same {
    ($($t:ty),*) => { $(impl CastTo<$t> for $t {
        #[inline(always)]
        fn cast_to(self) -> $t { self }
    })* };
}
same!(f16, bf16, Bool);

macro_rules! bool_and_float {
    ($($t:ty),*) => { $(
        impl CastTo<Bool> for $t {
            #[inline(always)]
            fn cast_to(self) -> Bool { Bool::from(Float::to_f32(self) != 0.0) }
        }
        impl CastTo<$t> for Bool {
            #[inline(always)]
            fn cast_to(self) -> $t { <$t as Float>::from_f32(f32::from(u8::from(self.get()))) }
        }
    )* };
}
bool_and_float!(f32, f16, bf16);
