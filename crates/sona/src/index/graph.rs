//! Hierarchical navigable small world graph (HNSW, arXiv 1603.09320) over slots.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use parking_lot::Mutex;

use super::vectors::{Query, Vectors};
use crate::random::Random;

/// Largest number of layers above the lowest; of `M^8` vectors, one reaches it.
pub(super) const MAX_LEVEL: usize = 8;

/// Slot with its distance, ordered by distance, then slot: a total order in one integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Near(u64);

impl Near {
    pub(super) fn new(distance: f32, slot: u32) -> Self {
        let bits = distance.to_bits();
        // Flips the order of negative numbers and puts them below the positive ones.
        let order = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        Self(u64::from(order) << 32 | u64::from(slot))
    }

    pub(super) fn slot(self) -> u32 {
        self.0 as u32
    }

    /// Order of the distance, without the slot.
    fn order(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Links between slots, and which of them are deleted.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Links per slot on the lowest layer: at most `2 m`; above: at most `m`.
    pub(super) m: usize,
    /// Candidates that an insertion keeps.
    pub(super) ef_insert: usize,
    /// Lowest layer, `[slots, 1 + 2 m]`: number of links, links.
    pub(super) lowest: Vec<u32>,
    /// Links of the layers above, by slot; the length is the slot's level.
    pub(super) upper: Vec<Vec<Vec<u32>>>,
    /// Deleted slots, which lead on but are no results.
    pub(super) is_dead: Vec<bool>,
    pub(super) dead: usize,
    /// Slot where searches begin, one of the highest level; `None` while there are no slots.
    pub(super) entry: Option<u32>,
    scratch: Pool,
}

/// Marks of visited slots, reused by later searches.
#[derive(Debug, Default)]
struct Visited {
    marks: Vec<u32>,
    current: u32,
}

/// Buffers that no search uses.
#[derive(Debug, Default)]
struct Pool(Mutex<Vec<Visited>>);

impl Pool {
    fn with<T>(&self, slots: usize, run: impl FnOnce(&mut Visited) -> T) -> T {
        let mut visited = self.0.lock().pop().unwrap_or_default();
        visited.begin(slots);
        let result = run(&mut visited);
        self.0.lock().push(visited);
        result
    }
}

impl Visited {
    fn begin(&mut self, slots: usize) {
        self.marks.resize(slots, 0);
        self.current = self.current.wrapping_add(1);
        if self.current == 0 {
            self.marks.fill(0);
            self.current = 1;
        }
    }

    /// True at the first visit.
    fn visit(&mut self, slot: u32) -> bool {
        std::mem::replace(&mut self.marks[slot as usize], self.current) != self.current
    }
}

impl Graph {
    pub(super) fn new(m: usize, ef_insert: usize) -> Self {
        Self { m, ef_insert, ..Self::default() }
    }

    /// Number of slots, deleted ones included.
    pub(super) fn len(&self) -> usize {
        self.is_dead.len()
    }

    /// Bytes of the links.
    pub(super) fn bytes(&self) -> usize {
        let upper: usize = self
            .upper
            .iter()
            .map(|layers| {
                size_of::<Vec<Vec<u32>>>()
                    + layers.iter().map(|l| size_of::<Vec<u32>>() + 4 * l.capacity()).sum::<usize>()
            })
            .sum();
        4 * self.lowest.capacity() + upper + self.is_dead.capacity()
    }

    /// Level of a key: geometric with ratio `1 / m`, from the key alone, so that it is the same in
    /// every run.
    fn level(&self, key: u64) -> usize {
        let uniform = Random::new(key).uniform();
        ((-uniform.ln() / (self.m as f64).ln()) as usize).min(MAX_LEVEL)
    }

    fn stride(&self) -> usize {
        1 + 2 * self.m
    }

    /// Largest number of links on a layer.
    pub(super) fn capacity(&self, layer: usize) -> usize {
        if layer == 0 { 2 * self.m } else { self.m }
    }

    pub(super) fn links(&self, layer: usize, slot: u32) -> &[u32] {
        let slot = slot as usize;
        if layer == 0 {
            let row = &self.lowest[slot * self.stride()..][..self.stride()];
            &row[1..][..row[0] as usize]
        } else {
            &self.upper[slot][layer - 1]
        }
    }

    pub(super) fn set_links(&mut self, layer: usize, slot: u32, links: &[u32]) {
        let slot = slot as usize;
        if layer == 0 {
            let stride = self.stride();
            let row = &mut self.lowest[slot * stride..][..stride];
            row[0] = links.len() as u32;
            row[1..][..links.len()].copy_from_slice(links);
        } else {
            links.clone_into(&mut self.upper[slot][layer - 1]);
        }
    }

    /// Links the vector of the last slot, which `vectors` has already.
    pub(super) fn insert(&mut self, vectors: &Vectors, query: &Query, key: u64) {
        let (slot, level) = (self.len() as u32, self.level(key));
        self.lowest.resize(self.lowest.len() + self.stride(), 0);
        self.upper.push(vec![Vec::new(); level]);
        self.is_dead.push(false);
        let Some(entry) = self.entry else {
            self.entry = Some(slot);
            return;
        };
        let top = self.upper[entry as usize].len();
        let mut start = Near::new(vectors.distance_to(query, entry), entry);
        for layer in (level + 1..=top).rev() {
            start = self.descend(vectors, query, layer, start);
        }
        for layer in (0..=level.min(top)).rev() {
            let found = self.search_layer(vectors, query, layer, start, self.ef_insert, |_| true);
            start = found[0];
            let chosen = self.choose(vectors, found, self.m);
            self.set_links(layer, slot, &chosen);
            for neighbour in chosen {
                self.connect(vectors, layer, neighbour, slot);
            }
        }
        if level > top {
            self.entry = Some(slot);
        }
    }

    /// Adds a link; a full list is chosen anew.
    fn connect(&mut self, vectors: &Vectors, layer: usize, from: u32, to: u32) {
        let mut links = self.links(layer, from).to_vec();
        links.push(to);
        if links.len() > self.capacity(layer) {
            let mut near: Vec<Near> =
                links.iter().map(|&link| Near::new(vectors.distance_between(from, link), link)).collect();
            near.sort_unstable();
            links = self.choose(vectors, near, self.capacity(layer));
        }
        self.set_links(layer, from, &links);
    }

    /// Neighbours in different directions (algorithm 4): a candidate is chosen if it is nearer to
    /// the base than to every one chosen before; the nearest of the others fill up.
    ///
    /// `candidates` ascend by their distance to the base.
    pub(super) fn choose(&self, vectors: &Vectors, candidates: Vec<Near>, most: usize) -> Vec<u32> {
        let (mut chosen, mut others) = (Vec::with_capacity(most), Vec::new());
        for candidate in candidates {
            if chosen.len() == most {
                break;
            }
            let slot = candidate.slot();
            let is_covered = chosen.iter().any(|&other| {
                Near::new(vectors.distance_between(slot, other), 0).order() < candidate.order()
            });
            if is_covered { others.push(slot) } else { chosen.push(slot) }
        }
        let room = most - chosen.len();
        chosen.extend(others.into_iter().take(room));
        chosen
    }

    /// Nearest slots that are alive and pass `filter`, at most `ef`, ascending by distance.
    pub(super) fn search(
        &self,
        vectors: &Vectors,
        query: &Query,
        ef: usize,
        filter: impl Fn(u32) -> bool,
    ) -> Vec<Near> {
        let Some(entry) = self.entry else { return Vec::new() };
        let mut start = Near::new(vectors.distance_to(query, entry), entry);
        for layer in (1..=self.upper[entry as usize].len()).rev() {
            start = self.descend(vectors, query, layer, start);
        }
        self.search_layer(vectors, query, 0, start, ef, |slot| !self.is_dead[slot as usize] && filter(slot))
    }

    /// Follows the nearest link until none is nearer.
    fn descend(&self, vectors: &Vectors, query: &Query, layer: usize, mut nearest: Near) -> Near {
        loop {
            let before = nearest;
            for &link in self.links(layer, before.slot()) {
                nearest = nearest.min(Near::new(vectors.distance_to(query, link), link));
            }
            if nearest == before {
                return nearest;
            }
        }
    }

    /// Best-first search of one layer (algorithm 2); results pass `filter`, the path need not.
    fn search_layer(
        &self,
        vectors: &Vectors,
        query: &Query,
        layer: usize,
        start: Near,
        ef: usize,
        filter: impl Fn(u32) -> bool,
    ) -> Vec<Near> {
        self.scratch.with(self.len(), |visited| {
            let mut open = BinaryHeap::from([Reverse(start)]);
            let mut found = BinaryHeap::with_capacity(ef + 1);
            visited.visit(start.slot());
            if filter(start.slot()) {
                found.push(start);
            }
            while let Some(Reverse(next)) = open.pop() {
                let bound = |found: &BinaryHeap<Near>| {
                    if found.len() < ef { u32::MAX } else { found.peek().map_or(u32::MAX, |n| n.order()) }
                };
                if next.order() > bound(&found) {
                    break;
                }
                for &link in self.links(layer, next.slot()) {
                    if !visited.visit(link) {
                        continue;
                    }
                    let near = Near::new(vectors.distance_to(query, link), link);
                    if near.order() >= bound(&found) {
                        continue;
                    }
                    open.push(Reverse(near));
                    if filter(link) {
                        found.push(near);
                        if found.len() > ef {
                            found.pop();
                        }
                    }
                }
            }
            found.into_sorted_vec()
        })
    }
}
