//! Symbolic sizes and conditions, as programs write them.

#![no_main]

use flambeau_pt2::{parse_bool, parse_int};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(size) = parse_int(text) {
        let (low, high) = size.bounds(&|_| (1, 1 << 20));
        let value = size.eval(&|_| Some(3));
        assert!(value.is_none_or(|value| (low..=high).contains(&value)), "{size} is {value:?}, outside of {low} to {high}");
        let _ = size.to_string();
    }
    if let Ok(condition) = parse_bool(text) {
        let _ = (condition.eval(&|_| Some(3)), condition.to_string());
    }
});
