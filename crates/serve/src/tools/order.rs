//! Grammar rules for arguments in any order.

use super::grammar::Writer;

/// Maximum number of arguments in any order. Each subset of them needs a rule.
pub(super) const MAX_ITEMS: usize = 6;
/// Maximum number of such rules in a grammar.
const MAX_ORDERS: usize = 2048;

/// A written argument.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) is_required: bool,
    /// The expression for its key and value.
    pub(super) text: String,
}

impl Writer<'_> {
    /// Whether the grammar may have rules for `items` arguments in any order.
    pub(super) fn has_room(&self, items: usize) -> bool {
        items <= MAX_ITEMS && self.orders + (1 << items) <= MAX_ORDERS
    }

    /// A rule for arguments with `between` between them, each at most once. They may have any order
    /// if [`has_room`](Self::has_room) allows that. Otherwise they keep their order.
    pub(super) fn in_any_order(&mut self, items: &[Item], between: &str) -> String {
        if !self.has_room(items.len()) {
            return self.in_order(items, between);
        }
        self.orders += 1 << items.len();
        let all = (1_usize << items.len()) - 1;
        // The rule for the rest, by the set of arguments without a value so far.
        let mut rests: Vec<String> = vec![String::new()];
        for left in 1..=all {
            let between = if left == all { "" } else { between };
            let is_left = |at: usize| (left >> at) & 1 == 1;
            let way = |(at, item): (usize, &Item)| format!("{between} {} {}", item.text, rests[left & !(1 << at)]);
            let ways: Vec<String> = items.iter().enumerate().filter(|(at, _)| is_left(*at)).map(way).collect();
            let may_end = items.iter().enumerate().all(|(at, item)| !is_left(at) || !item.is_required);
            let rule = self.one_of(&ways, may_end);
            rests.push(rule);
        }
        rests.pop().unwrap_or_default()
    }

    /// A rule for arguments in their order.
    fn in_order(&mut self, items: &[Item], between: &str) -> String {
        // Rules for the arguments from `item` on: without and with an argument before them.
        let (mut first, mut later) = (String::new(), String::new());
        for item in items.iter().rev() {
            let here = self.rule(&format!("{} {later}", item.text));
            let separated = format!("{between} {here}");
            let skips = |rest: &String| Some(rest.clone()).filter(|rest| !item.is_required && !rest.is_empty());
            let ends = |rest: &String| !item.is_required && rest.is_empty();
            first = self.one_of(&[Some(here), skips(&first)].into_iter().flatten().collect::<Vec<_>>(), ends(&first));
            later = self.one_of(&[Some(separated), skips(&later)].into_iter().flatten().collect::<Vec<_>>(), ends(&later));
        }
        first
    }

    /// A rule for one of these alternatives. With `may_end`, it also matches an empty text.
    fn one_of(&mut self, ways: &[String], may_end: bool) -> String {
        let ways = ways.join(" | ");
        self.rule(&if may_end { format!("({ways})?") } else { ways })
    }
}
