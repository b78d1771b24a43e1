//! Payloads of the delegate. A valid graph survives a round trip through bytes and through text.

#![no_main]

use flambeau_ir::{Graph, check};
use flambeau_wire::mlx;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(graph) = mlx::decode(bytes) else { return };
    let text = graph.to_string();
    let parsed = text.parse::<Graph>();
    if let Ok(checked) = check(graph) {
        let again = mlx::decode(&mlx::encode(&checked)).expect("what is written reads");
        assert_eq!(again.to_string(), text);
        assert!(parsed.is_ok(), "{parsed:?}\n{text}");
    }
});
