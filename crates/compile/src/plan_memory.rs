//! Placement of a plan's tensors in one arena. Two tensors share bytes only if their lifetimes do
//! not overlap.

/// Alignment of offsets, in bytes.
const ALIGNMENT: u64 = 16;

/// Memory that is needed from instruction `first` to instruction `last`, inclusive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) bytes: u64,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl Request {
    fn meets(&self, other: &Request) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Returns the offset of each request and the size of the arena, in bytes.
///
/// Places large requests first. Each takes the lowest gap between placed requests with an
/// overlapping lifetime.
pub(crate) fn assign_offsets(requests: &[Request]) -> (Vec<u64>, u64) {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(requests[i].bytes), requests[i].first, i));
    let mut offsets = vec![0u64; requests.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(requests.len());
    let mut arena = 0;
    for i in order {
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&p| requests[p].meets(&requests[i]))
            .map(|&p| (offsets[p], offsets[p].saturating_add(requests[p].bytes)))
            .collect();
        taken.sort_unstable();
        let mut at = 0u64;
        for (start, end) in taken {
            if at.saturating_add(requests[i].bytes) <= start {
                break;
            }
            at = at.max(end.next_multiple_of(ALIGNMENT));
        }
        offsets[i] = at;
        arena = arena.max(at.saturating_add(requests[i].bytes).next_multiple_of(ALIGNMENT));
        placed.push(i);
    }
    (offsets, arena)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(requests: &[(u64, usize, usize)], arena: u64) {
        let requests: Vec<Request> = requests.iter().map(|&(bytes, first, last)| Request { bytes, first, last }).collect();
        let (offsets, size) = assign_offsets(&requests);
        assert_eq!(size, arena, "{requests:?}");
        for (i, a) in requests.iter().enumerate() {
            assert!(offsets[i].is_multiple_of(ALIGNMENT) && offsets[i] + a.bytes <= size);
            for (j, b) in requests.iter().enumerate().skip(i + 1).filter(|(_, b)| a.meets(b)) {
                let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                assert!(apart, "{i} and {j} of {requests:?} share bytes");
            }
        }
    }

    #[test]
    fn places_are_reused_but_never_shared() {
        check(&[], 0);
        check(&[(20, 0, 1), (20, 0, 1)], 64);
        check(&[(20, 0, 0), (20, 1, 1), (20, 2, 2)], 32);
        check(&[(16, 0, 1), (64, 1, 2), (16, 2, 3), (16, 0, 3)], 96);
        check(&[(100, 0, 9), (1, 3, 4), (1, 4, 5), (0, 4, 4)], 144);
    }

    #[test]
    fn many_requests_stay_apart() {
        let mut state = 7u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % n
        };
        let requests: Vec<Request> = (0..60)
            .map(|_| {
                let first = next(30) as usize;
                Request { bytes: next(500), first, last: first + next(8) as usize }
            })
            .collect();
        let arena = assign_offsets(&requests).1;
        let raw: Vec<(u64, usize, usize)> = requests.iter().map(|r| (r.bytes, r.first, r.last)).collect();
        check(&raw, arena);
        assert!(arena < requests.iter().map(|r| r.bytes.next_multiple_of(ALIGNMENT)).sum());
    }
}
