//! Shorthand for the methods of an instruction set that is proven by `self`.

/// Methods that need the instruction set proven by `self`.
macro_rules! methods {
    ($($(#[$attr:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $body:expr;)*) => { $(
        $(#[$attr])*
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) $(-> $ret)? {
            // SAFETY: `self` proves that the CPU has the instructions.
            unsafe { $body }
        }
    )* };
}

/// Methods that also need valid memory from their callers.
macro_rules! memory_methods {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $body:expr;)*) => { $(
        #[inline(always)]
        unsafe fn $name(self, $($arg: $ty),*) $(-> $ret)? {
            // SAFETY: `self` proves that the CPU has the instructions; the caller ensures valid
            // memory.
            unsafe { $body }
        }
    )* };
}
