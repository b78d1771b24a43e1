use proptest::prelude::*;

use super::*;

fn shown(result: Result<impl fmt::Display>) -> String {
    result.map_or_else(|e| format!("error: {e}"), |v| v.to_string())
}

/// Replaces `$s` and `$u` by a backed and an unbacked symbol.
fn filled(text: &str) -> String {
    text.replace("$s", S).replace("$u", U)
}

const S: &str = "Symbol('s77', positive=True, integer=True)";
const U: &str = "Symbol('u0', integer=True)";

#[test]
fn constructor_syntax_gives_integers() {
    let check = |text: &str, want: &str| assert_eq!(shown(parse_int(&filled(text))), want, "{text}");
    check("$s", "s77");
    check("Integer(-3)", "-3");
    check("Mul(Integer(2), $s)", "2*s77");
    check("Add(FloorDiv($s, Integer(2)), Integer(1))", "(s77)//(2)+1");
    check("FloorDiv(Mul(Integer(4), $s), Integer(2))", "2*s77");
    check("CleanDiv(Mul(Integer(4), $s), Integer(2))", "2*s77");
    check("CeilDiv($s, Integer(4))", "(s77+3)//(4)");
    check("CeilDiv($s, $u)", "-(-s77)//(u0)");
    check("Mod($s, Integer(3))", "(s77)%(3)");
    check("PythonMod(Mul(Integer(6), $s), Integer(3))", "0");
    check("ModularIndexing($s, Integer(4), Integer(2))", "((s77)//(4))%(2)");
    check("Max(Integer(1), Min($s, $u))", "max(1, min(s77, u0))");
    check("Pow(Add($s, Integer(1)), Integer(2))", "2*s77+s77*s77+1");
    check("PowByNatural($s, Integer(0))", "1");
    check("LShift($s, Integer(3))", "8*s77");
    check("RShift($s, Integer(1))", "(s77)//(2)");
    check("Identity(Add($s, $s))", "2*s77");
}

#[test]
fn detours_through_floats_are_undone_where_exact() {
    let check = |text: &str, want: &str| assert_eq!(shown(parse_int(&filled(text))), want, "{text}");
    check("TruncToInt(IntTrueDiv($s, Integer(2)))", "(s77)//(2)");
    check("FloorToInt(IntTrueDiv($u, Integer(2)))", "(u0)//(2)");
    check("TruncToInt(IntTrueDiv($u, Integer(2)))", "TruncToInt(IntTrueDiv(Symbol('u0', integer=True), Integer(2)))");
    check("CeilToInt(IntTrueDiv($s, Integer(2)))", "(s77+1)//(2)");
    check("Max(Integer(1), TruncToInt(Mul(Float('1.5', precision=53), ToFloat($s))))", "max(1, (3*s77)//(2))");
    check("FloorToInt(FloatTrueDiv(ToFloat($s), ToFloat(Integer(4))))", "(s77)//(4)");
    check("TruncToInt(Mul(Float('2.0', precision=53), ToFloat($s)))", "2*s77");
    check("FloorToInt(Add(Rational(1, 2), Mul(Rational(1, 2), $s)))", "(s77+1)//(2)");
    check("TruncToInt(Mul(Float('0.1', precision=53), $u))", "trunc(0.1 * u0)");
    check("Add(Integer(1), RoundToInt(IntTrueDiv($s, Integer(3))))", "round(s77 / (3))+1");
    check("CeilToInt(Mul(Float('1.3', precision=53), ToFloat($s)))", "ceil(1.3 * s77)");
    check("FloorToInt(OpaqueUnaryFn_sqrt($s))", "floor(sqrt(s77))");
    check("PowByNatural(Integer(2), $s)", "round((2) ** (s77))");
}

#[test]
fn choices_are_sums_of_their_cases() {
    let text =
        "Piecewise(ExprCondPair(Mul(Integer(2), $s), StrictGreaterThan($s, Integer(4))), ExprCondPair(Add($s, Integer(1)), true))";
    let choice = parse_int(&filled(text)).unwrap();
    assert_eq!([3, 4, 5, 9].map(|n| choice.eval(&|_| Some(n))), [Some(4), Some(5), Some(10), Some(18)]);
    let text = "Piecewise(ExprCondPair(Integer(7), Or(Eq($s, Integer(2)), Not(Le($s, Integer(5))))), ExprCondPair($s, true))";
    let choice = parse_int(&filled(text)).unwrap();
    assert_eq!([2, 3, 5, 6].map(|n| choice.eval(&|_| Some(n))), [Some(7), Some(3), Some(5), Some(7)]);
}

#[test]
fn python_syntax_gives_the_same() {
    let check = |text: &str, want: &str| assert_eq!(shown(parse_int(text)), want, "{text}");
    check("s77*2", "2*s77");
    check("2*s77 + 3 - u0", "2*s77-u0+3");
    check("(s77//2)", "(s77)//(2)");
    check("Max(1, s0)", "max(1, s0)");
    check("s0**2 % 4", "(s0*s0)%(4)");
    check("-s0**2", "-s0*s0");
    check("math.trunc(s0 / 2)", "(s0)//(2)");
    check("9223372036854775807", "9223372036854775807");
    check("int_oo", "int_oo");
    check("FloorDiv(-9223372036854775807 - 1, -1)", "-9223372036854775808");
}

#[test]
fn booleans_are_comparisons() {
    let check = |text: &str, want: &str| assert_eq!(shown(parse_bool(&filled(text))), want, "{text}");
    check("GreaterThan($u, Integer(0))", "u0 >= 0");
    check("StrictLessThan(Integer(2), $u)", "2 < u0");
    check("And(Equality($u, Integer(3)), Not(Unequality($u, Integer(4))))", "(u0 == 3) & (~(u0 != 4))");
    check("Eq(u0, 1) | (u0 >= 5)", "(u0 == 1) | (u0 >= 5)");
    check("true", "true");
    check("LessThan($u, $u)", "true");
    check("u0 / 3 < 2", "u0 / 3 < 2");
    let condition = parse_bool("Or(u0 < 2, u0 > 5)").unwrap();
    assert_eq!([1, 3, 6].map(|v| condition.eval(&|_| Some(v))), [Some(true), Some(false), Some(true)]);
}

#[test]
fn faults_name_the_place() {
    let check = |text: &str, want: &str| assert_eq!(shown(parse_int(text)), format!("error: {want}"), "{text}");
    check("", "symbolic expression, byte 0: expected an expression in ``");
    check("Add(s0, ", "symbolic expression, byte 8: expected an expression in `Add(s0, `");
    check("s0 s1", "symbolic expression, byte 3: unexpected text after the expression in `s0 s1`");
    check("system(1)", "symbolic expression, byte 0: `system` with 1 operands is not known in `system(1)`");
    check("Integer('x')", "symbolic expression, byte 0: malformed `Integer` in `Integer('x')`");
}

#[test]
fn size_is_bounded() {
    let nested = format!("{}s0{}", "(".repeat(1000), ")".repeat(1000));
    assert!(shown(parse_int(&nested)).contains("nested more than 64 deep"));
    assert!(matches!(parse_int(&"s0+".repeat(4000)), Err(Error::Limit { .. })));
    assert!(matches!(parse_int(&" ".repeat(crate::limits::MAX_EXPR_BYTES + 1)), Err(Error::Limit { .. })));
    let tower = (0..20).fold("s0".to_owned(), |t, _| format!("Pow(Add(s1, {t}), Integer(16))"));
    assert!(parse_int(&tower).is_ok());
    let halves = (0..30).fold("s0".to_owned(), |t, _| format!("Pow(FloorDiv({t}, 2), 2)"));
    assert!(parse_int(&halves).unwrap().symbols().len() <= 1);
    let product = |t: &str| (0..8).map(|i| format!("(({t} + s{i})//3 + 1)")).collect::<Vec<_>>().join("*");
    assert!(parse_int(&product(&product("s9"))).unwrap().weight() < 100_000);
}

/// Random tokens reach deeper into the parser than random characters.
fn token_soup() -> impl Strategy<Value = String> {
    let tokens = [
        "Add",
        "Mul",
        "FloorDiv",
        "Mod",
        "Pow",
        "Max",
        "TruncToInt",
        "IntTrueDiv",
        "Symbol",
        "Integer",
        "Float",
        "(",
        ")",
        ",",
        "'a'",
        "s0",
        "u1",
        "-",
        "**",
        "//",
        "%",
        "<",
        "==",
        "&",
        "~",
        "9223372036854775807",
        "-9223372036854775808",
        "0",
        "0.5",
        "1e400",
        "=",
        "é",
    ];
    prop::collection::vec(prop::sample::select(tokens.to_vec()), 0..40).prop_map(|t| t.join(" "))
}

proptest! {
    #[test]
    fn any_text_is_an_expression_or_an_error(text in ".{0,80}") {
        let _ = (parse_int(&text), parse_bool(&text));
    }

    #[test]
    fn any_tokens_are_an_expression_or_an_error(text in token_soup()) {
        if let Ok(e) = parse_int(&text) {
            let _ = e.eval(&|_| Some(3));
        }
    }

    #[test]
    fn both_syntaxes_agree_with_integers(a in 1i64..1000, b in 1i64..50, c in -20i64..20) {
        let text = format!("Add(CeilDiv(s0, Integer({b})), Mul(Integer({c}), TruncToInt(IntTrueDiv(s0, {b}))), Mod(s0, {b}))");
        let infix = format!("-(-s0//{b}) + {c}*(s0//{b}) + s0 % {b}");
        let want = a.div_euclid(b) + i64::from(a % b != 0) + c * (a / b) + a % b;
        for text in [text, infix] {
            prop_assert_eq!(parse_int(&text).unwrap().eval(&|_| Some(a)), Some(want));
        }
    }
}
