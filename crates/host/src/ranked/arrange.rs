//! Sorting and selection that arrange equal elements as PyTorch's CPU kernels do.
//!
//! PyTorch calls the sorting functions of GNU's C++ library. Their pivots, heaps and thresholds
//! decide the order of equal elements. The functions here make the same choices, so positions
//! agree. Elements are pairs of a key and a position, and only keys are compared. NaN keys compare
//! as in C++: false.

/// Parts of at most this length are left to the final insertion sort.
const SHORT_SORT: usize = 16;
/// Parts of at most this length end a selection.
const SHORT_SELECTION: usize = 3;

/// A key and its position.
pub(super) type Pair<K> = (K, usize);

/// Sorts all elements; the result is not stable if there are more than 16 (introsort).
pub(super) fn sort<K: PartialOrd + Copy>(v: &mut [Pair<K>]) {
    if !v.is_empty() {
        split_to_short(v, depth(v.len()));
        finish(v);
    }
}

/// Moves the element of rank `nth` to its place, smaller ones before it and others after it
/// (introselect).
pub(super) fn select<K: PartialOrd + Copy>(v: &mut [Pair<K>], nth: usize) {
    if nth >= v.len() {
        return;
    }
    let (mut start, mut end, mut left) = (0, v.len(), depth(v.len()));
    while end - start > SHORT_SELECTION {
        if left == 0 {
            keep_smallest(&mut v[start..end], nth + 1 - start);
            v.swap(start, nth);
            return;
        }
        left -= 1;
        let cut = start + partition(&mut v[start..end]);
        if cut <= nth { start = cut } else { end = cut }
    }
    insert_each(&mut v[start..end]);
}

/// Moves the `count` smallest elements to the front, in order (a heap of the smallest).
pub(super) fn sort_smallest<K: PartialOrd + Copy>(v: &mut [Pair<K>], count: usize) {
    keep_smallest(v, count);
    for last in (1..count).rev() {
        let largest = v[0];
        let moved = std::mem::replace(&mut v[last], largest);
        sink(&mut v[..last], 0, moved);
    }
}

/// Moves the element of rank `nth` to its place by Hoare's selection with a median of three.
pub(super) fn select_by_halves<K: PartialOrd + Copy>(v: &mut [Pair<K>], nth: usize) {
    let (mut left, mut right) = (0, v.len().saturating_sub(1));
    while right > left + 1 {
        v.swap(left + (right - left) / 2, left + 1);
        for (a, b) in [(left + 1, right), (left, right), (left + 1, left)] {
            exchange(v, a, b);
        }
        let (pivot, mut i, mut j) = (v[left].0, left + 1, right);
        loop {
            i += 1;
            while pivot > v[i].0 {
                i += 1;
            }
            j -= 1;
            while v[j].0 > pivot {
                j -= 1;
            }
            if j < i {
                break;
            }
            v.swap(i, j);
        }
        v.swap(left, j);
        if j <= nth {
            left = i;
        }
        if j >= nth {
            right = j.saturating_sub(1);
        }
    }
    if right == left + 1 {
        exchange(v, left, right);
    }
}

/// Swaps two elements if the first is larger.
fn exchange<K: PartialOrd + Copy>(v: &mut [Pair<K>], a: usize, b: usize) {
    if v[a].0 > v[b].0 {
        v.swap(a, b);
    }
}

/// How often a part may be cut before a heap takes over: twice the logarithm.
fn depth(len: usize) -> u32 {
    2 * len.ilog2()
}

/// Cuts until all parts are short.
fn split_to_short<K: PartialOrd + Copy>(mut v: &mut [Pair<K>], mut left: u32) {
    while v.len() > SHORT_SORT {
        if left == 0 {
            return sort_smallest(v, v.len());
        }
        left -= 1;
        let cut = partition(v);
        let (before, after) = v.split_at_mut(cut);
        split_to_short(after, left);
        v = before;
    }
}

/// Moves elements not larger than a median of three to the front, and returns where the others
/// begin. An element equal to the median may go to either side.
fn partition<K: PartialOrd + Copy>(v: &mut [Pair<K>]) -> usize {
    let (middle, last) = (v.len() / 2, v.len() - 1);
    let median = median(v, 1, middle, last);
    v.swap(0, median);
    let (pivot, mut i, mut j) = (v[0].0, 1, v.len());
    loop {
        // Without NaN, the pivot's equals stop both walks inside of the slice.
        while i < v.len() && v[i].0 < pivot {
            i += 1;
        }
        j -= 1;
        while j > 0 && pivot < v[j].0 {
            j -= 1;
        }
        if i >= j {
            return i;
        }
        v.swap(i, j);
        i += 1;
    }
}

/// The one of three places whose key is between the others.
fn median<K: PartialOrd + Copy>(v: &[Pair<K>], a: usize, b: usize, c: usize) -> usize {
    let less = |x: usize, y: usize| v[x].0 < v[y].0;
    let (low, high) = if less(a, b) { (a, b) } else { (b, a) };
    if less(high, c) {
        return high;
    }
    if less(low, c) { c } else { low }
}

/// Insertion sort.
fn insert_each<K: PartialOrd + Copy>(v: &mut [Pair<K>]) {
    for i in 1..v.len() {
        if v[i].0 < v[0].0 {
            v[..=i].rotate_right(1);
        } else {
            insert(v, i);
        }
    }
}

/// Moves an element down past larger ones.
fn insert<K: PartialOrd + Copy>(v: &mut [Pair<K>], at: usize) {
    let mut to = at;
    while to > 0 && v[at].0 < v[to - 1].0 {
        to -= 1;
    }
    v[to..=at].rotate_right(1);
}

/// Sorts parts that are in order among each other.
fn finish<K: PartialOrd + Copy>(v: &mut [Pair<K>]) {
    let first = v.len().min(SHORT_SORT);
    insert_each(&mut v[..first]);
    (first..v.len()).for_each(|i| insert(v, i));
}

/// Makes the first `count` places a heap of the smallest elements, the largest of them on top.
fn keep_smallest<K: PartialOrd + Copy>(v: &mut [Pair<K>], count: usize) {
    for at in (0..count / 2).rev() {
        let moved = v[at];
        sink(&mut v[..count], at, moved);
    }
    for i in count..v.len() {
        if v[i].0 < v[0].0 {
            let largest = v[0];
            let moved = std::mem::replace(&mut v[i], largest);
            sink(&mut v[..count], 0, moved);
        }
    }
}

/// Puts an element into a heap with a hole: the hole goes down to a leaf, and the element up from
/// there.
fn sink<K: PartialOrd + Copy>(heap: &mut [Pair<K>], top: usize, moved: Pair<K>) {
    let mut hole = top;
    while 2 * hole + 1 < heap.len() {
        let (first, second) = (2 * hole + 1, 2 * hole + 2);
        let larger = if second < heap.len() && heap[second].0 < heap[first].0 { first } else { second.min(heap.len() - 1) };
        heap[hole] = heap[larger];
        hole = larger;
    }
    while hole > top && heap[(hole - 1) / 2].0 < moved.0 {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = moved;
}
