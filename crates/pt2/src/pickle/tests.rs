use proptest::prelude::*;

use super::*;

struct Nothing;

impl machine::Host for Nothing {
    type Global = u8;
    type Object = ();

    fn global(&mut self, module: &str, name: &str) -> Option<u8> {
        (module == "m" && name == "f").then_some(1)
    }
    fn reduce(_: &mut Machine<Nothing>, _: u8, args: &[machine::StackValue<u8>]) -> Result<machine::StackValue<u8>, PickleFault> {
        args.first().copied().ok_or(PickleFault::EmptyStack)
    }
    fn has_state((): &()) -> bool {
        true
    }
    fn persistent(_: &mut Machine<Nothing>, id: machine::StackValue<u8>) -> Result<machine::StackValue<u8>, PickleFault> {
        Ok(id)
    }
}

fn shown(pickle: &[u8]) -> String {
    let mut machine = Machine::new(Nothing);
    match machine.run(pickle) {
        Ok(machine::StackValue::Int(v)) => v.to_string(),
        Ok(value) => machine.kind(value),
        Err((at, what)) => format!("{at}: {what}"),
    }
}

#[test]
fn machine_runs_the_instructions_of_protocol_2() {
    let check = |pickle: &[u8], want: &str| assert_eq!(shown(pickle), want, "{}", pickle.escape_ascii());
    check(b"\x80\x02K\x07.", "7");
    check(b"J\xff\xff\xff\xff.", "-1");
    check(b"\x8a\x02\x00\xff.", "-256");
    check(b"(K\x01K\x02t.", "a tuple");
    check(b"]q\x00(K\x01K\x02e.", "a list");
    check(b"}(X\x01\x00\x00\x00aK\x01u.", "a dict");
    check(b"cm\nf\nK\x05\x85R.", "5");
    check(b"cm\nf\nK\x05\x85\x81.", "5");
    check(b"cos\nsystem\n.", "0: `os system` is not among the constructors that tensors need");
    check(b"\x80\x04N.", "0: expected protocol 2 or less");
    check(b"K\x01R.", "2: the stack is empty");
    check(b"h\x09.", "0: memo 9 is empty");
    check(b"X\xff\xff\xff\xffa", "0: the pickle ends too early");
    check(b"t.", "0: no mark on the stack");
    check(b"(N\x85\x85t0", "5: instruction 0x30 is not known");
}

#[test]
fn deep_nesting_is_flat_in_memory() {
    let mut pickle = vec![b')'];
    pickle.extend(std::iter::repeat_n(0x85, 200_000));
    pickle.push(b'.');
    assert_eq!(shown(&pickle), "a tuple");
}

proptest! {
    #[test]
    fn any_bytes_are_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        shown(&bytes);
    }

    #[test]
    fn any_instructions_are_a_value_or_an_error(codes in prop::collection::vec(prop::sample::select(&b"(tN)}]aesubRQ.\x85\x86\x87\x88"[..]), 0..60)) {
        shown(&codes);
    }
}
