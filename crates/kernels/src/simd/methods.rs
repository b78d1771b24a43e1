//! Shorthand for the methods of an instruction set that is proven by `self`.

/// Methods whose body needs the instruction set that `self` proves.
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

/// Methods that also rely on what their callers say about memory.
macro_rules! memory_methods {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $body:expr;)*) => { $(
        #[inline(always)]
        unsafe fn $name(self, $($arg: $ty),*) $(-> $ret)? {
            // SAFETY: `self` proves that the CPU has the instructions; the caller vouches for the memory.
            unsafe { $body }
        }
    )* };
}
