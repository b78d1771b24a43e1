use proptest::prelude::*;

use super::*;

fn s(name: &str) -> Expr {
    Expr::symbol(Symbol::new(name))
}

fn int(v: i64) -> Expr {
    Expr::Int(v)
}

#[test]
fn ring_arithmetic_is_canonical() {
    let (a, b) = (s("a"), s("b"));
    assert_eq!((a.clone() + b.clone()) * int(2), b.clone() + a.clone() + a.clone() + b.clone());
    assert_eq!(a.clone() - a.clone(), int(0));
    assert_eq!(a.clone() * b.clone(), b.clone() * a.clone());
    assert_eq!((int(2) * a.clone() - b + int(3)).to_string(), "2*a-b+3");
}

#[test]
fn division_simplifies_where_exact() {
    let a = s("a");
    assert_eq!((int(6) * a.clone() + int(4)).floor_div(&int(2)), int(3) * a.clone() + int(2));
    assert_eq!((int(6) * a.clone() + int(5)).floor_div(&int(3)), int(2) * a.clone() + int(1));
    assert_eq!((a.clone() * s("b")).floor_div(&a), s("b"));
    assert_eq!((int(4) * a.clone()).modulo(&int(2)), int(0));
    assert_eq!(a.floor_div(&int(2)).to_string(), "(a)//(2)");
    assert_eq!((int(-7).floor_div(&int(2)), int(-7).modulo(&int(2))), (int(-4), int(1)));
}

#[test]
fn division_by_zero_does_not_evaluate() {
    let e = s("a").floor_div(&s("b"));
    assert_eq!(e.eval(&|s| Some(i64::from(s.name() == "a"))), None);
    assert_eq!(int(3).floor_div(&int(0)).eval(&|_| None), None);
}

#[test]
fn the_extreme_integers_divide_without_a_panic() {
    let min = int(i64::MIN);
    assert_eq!((min.floor_div(&int(-1)), min.modulo(&int(-1))), (min.clone(), int(0)));
    assert_eq!((min.clone() * s("a")).exact_div(&int(-1)), Some(min * s("a")));
}

#[test]
fn weight_counts_terms_and_factors() {
    let (a, b) = (s("a"), s("b"));
    let weights = [int(7), a.clone(), a.clone() * b.clone() + int(1), a.floor_div(&b)].map(|e| e.weight());
    assert_eq!(weights, [1, 2, 4, 6]);
}

#[test]
fn bounds_hold_the_value() {
    let e = int(2) * s("a") - s("b") + int(1);
    assert_eq!(e.bounds(&|s| if s.name() == "a" { (1, 4) } else { (0, 3) }), (0, 9));
}

proptest! {
    #[test]
    fn evaluation_agrees_with_integers(a in -50i64..50, b in 1i64..20, c in -9i64..9) {
        let e = (s("a") * int(c) + s("b")).floor_div(&s("b")) + (s("a") + int(c)).modulo(&s("b")) * s("a").maximum(&int(c));
        let want = (a * c + b).div_euclid(b) + (a + c).rem_euclid(b) * a.max(c);
        prop_assert_eq!(e.eval(&|s| Some(if s.name() == "a" { a } else { b })), Some(want));
    }
}
