//! Where the boxes of a drawing go: layers from left to right by the longest way to a task, long edges bent
//! through a place in every layer they pass, an order within each layer with few crossings, and heights
//! that keep edges short.
//!
//! The classic method of Sugiyama: sort each layer by the mean place of its neighbours, a fixed number of
//! times, then pull every place towards its neighbours as far as the order allows.

use super::Subject;

/// Sweeps over the layers, there and back. Drawings of real DAGs stop changing after a few.
const ORDER_SWEEPS: usize = 12;
const PULL_SWEEPS: usize = 8;

/// Room above and below the centre of a box, and of a bend, in rows.
const BOX_HALF: f32 = 0.5;
const BEND_HALF: f32 = 0.25;

/// The layout of a graph. Places below the number of tasks are tasks; the others are bends of long edges.
pub(super) struct Layout {
    /// The places of each layer, from top to bottom.
    pub(super) layers: Vec<Vec<usize>>,
    /// The height of each place, in rows, from 0.
    pub(super) y: Vec<f32>,
    /// Each edge as the places it goes through.
    pub(super) routes: Vec<Vec<usize>>,
}

/// Lays `subject` out; `None` if long edges would need more than `bends_max` bends.
pub(super) fn layout(subject: &Subject<'_>, bends_max: usize) -> Option<Layout> {
    let layer_of = subject.plan.layers();
    let bends = |from: usize, to: usize| (layer_of[to] - layer_of[from]).saturating_sub(1) as usize;
    if subject.edges().map(|(from, to)| bends(from.index(), to.index())).sum::<usize>() > bends_max {
        return None;
    }
    let tasks = subject.plan.len();
    let mut layers: Vec<Vec<usize>> =
        vec![Vec::new(); layer_of.iter().max().map_or(0, |deepest| *deepest as usize + 1)];
    for (task, layer) in layer_of.iter().enumerate() {
        layers[*layer as usize].push(task);
    }
    let mut routes = Vec::new();
    let mut places = tasks;
    for (from, to) in subject.edges() {
        let mut route = vec![from.index()];
        for layer in &mut layers[layer_of[from.index()] as usize + 1..layer_of[to.index()] as usize] {
            layer.push(places);
            route.push(places);
            places += 1;
        }
        route.push(to.index());
        routes.push(route);
    }
    let links = Links::new(places, &routes);
    reduce_crossings(&mut layers, &links, places);
    let y = heights(&layers, &links, places, tasks);
    Some(Layout { layers, y, routes })
}

/// The neighbours of each place in the layers beside it.
struct Links {
    left: Vec<Vec<usize>>,
    right: Vec<Vec<usize>>,
}

impl Links {
    fn new(places: usize, routes: &[Vec<usize>]) -> Self {
        let mut links = Self { left: vec![Vec::new(); places], right: vec![Vec::new(); places] };
        for pair in routes.iter().flat_map(|route| route.windows(2)) {
            links.right[pair[0]].push(pair[1]);
            links.left[pair[1]].push(pair[0]);
        }
        links
    }

    fn mean(&self, place: usize, at: &[f32], side: Side) -> Option<f32> {
        let near: &[&[usize]] = match side {
            Side::Left => &[&self.left[place]],
            Side::Right => &[&self.right[place]],
            Side::Both => &[&self.left[place], &self.right[place]],
        };
        let count = near.iter().map(|side| side.len()).sum::<usize>();
        let sum: f32 = near.iter().flat_map(|side| side.iter()).map(|place| at[*place]).sum();
        (count > 0).then(|| sum / count as f32)
    }
}

#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
    Both,
}

fn reduce_crossings(layers: &mut [Vec<usize>], links: &Links, places: usize) {
    let mut at = vec![0.0; places];
    for layer in layers.iter() {
        number(layer, &mut at);
    }
    for sweep in 0..ORDER_SWEEPS {
        let side = if sweep % 2 == 0 { Side::Left } else { Side::Right };
        let count = layers.len();
        for step in 0..count {
            let layer = &mut layers[if sweep % 2 == 0 { step } else { count - 1 - step }];
            let mut keyed: Vec<(f32, usize)> = layer
                .iter()
                .map(|place| (links.mean(*place, &at, side).unwrap_or(at[*place]), *place))
                .collect();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            *layer = keyed.into_iter().map(|(_, place)| place).collect();
            number(layer, &mut at);
        }
    }
}

/// Notes each place's rank in its layer, centred, so that layers of different sizes compare.
fn number(layer: &[usize], at: &mut [f32]) {
    let middle = layer.len() as f32 / 2.0;
    for (i, place) in layer.iter().enumerate() {
        at[*place] = i as f32 - middle;
    }
}

fn heights(layers: &[Vec<usize>], links: &Links, places: usize, tasks: usize) -> Vec<f32> {
    let half = |place: usize| if place < tasks { BOX_HALF } else { BEND_HALF };
    let mut y = vec![0.0; places];
    for layer in layers {
        spread(layer, &mut y, half, |_, y| y);
    }
    for sweep in 0..PULL_SWEEPS {
        let side = match sweep {
            _ if sweep + 1 == PULL_SWEEPS => Side::Both,
            _ if sweep % 2 == 0 => Side::Left,
            _ => Side::Right,
        };
        for step in 0..layers.len() {
            let layer = &layers[if sweep % 2 == 0 { step } else { layers.len() - 1 - step }];
            let wanted: Vec<f32> =
                layer.iter().map(|place| links.mean(*place, &y, side).unwrap_or(y[*place])).collect();
            spread(layer, &mut y, half, |i, _| wanted[i]);
        }
    }
    let top = (0..places).map(|place| y[place] - half(place)).fold(f32::INFINITY, f32::min);
    for height in &mut y {
        *height -= top;
    }
    y
}

/// Places a layer as close to what each place wants as order and room allow: the least-squares answer, by
/// pooling neighbours that would overlap into blocks.
fn spread(layer: &[usize], y: &mut [f32], half: impl Fn(usize) -> f32, wanted: impl Fn(usize, f32) -> f32) {
    let mut offset = 0.0;
    let mut offsets = Vec::with_capacity(layer.len());
    // Sum of what a block's members want, less their offsets, and how many they are.
    let mut blocks: Vec<(f32, usize)> = Vec::new();
    for (i, place) in layer.iter().enumerate() {
        if i > 0 {
            offset += half(layer[i - 1]) + half(*place);
        }
        offsets.push(offset);
        blocks.push((wanted(i, y[*place]) - offset, 1));
        while let [.., (sum, count), (next_sum, next_count)] = blocks.as_mut_slice() {
            if *sum / *count as f32 <= *next_sum / *next_count as f32 {
                break;
            }
            *sum += *next_sum;
            *count += *next_count;
            blocks.pop();
        }
    }
    let mut i = 0;
    for (sum, count) in blocks {
        for _ in 0..count {
            y[layer[i]] = sum / count as f32 + offsets[i];
            i += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use cis_core::dag::{Dag, plan::Plan};

    use super::super::sample::{dag, wide};
    use super::*;

    fn laid_out(dag: &Dag, bends_max: usize) -> Option<Layout> {
        let plan = Plan::new(dag);
        layout(&Subject { dag, plan: &plan, states: None }, bends_max)
    }

    fn crossings(layout: &Layout) -> usize {
        let pairs: Vec<_> = layout.routes.iter().flat_map(|route| route.windows(2)).collect();
        let layer_of = |place: usize| layout.layers.iter().position(|layer| layer.contains(&place));
        let cross = |a: &[usize], b: &[usize]| {
            layer_of(a[0]) == layer_of(b[0])
                && (layout.y[a[0]] - layout.y[b[0]]) * (layout.y[a[1]] - layout.y[b[1]]) < 0.0
        };
        pairs.iter().enumerate().map(|(i, a)| pairs[..i].iter().filter(|b| cross(a, b)).count()).sum()
    }

    #[test]
    fn what_can_be_drawn_without_crossings_is() {
        let ladder = dag(&[("a", &[]), ("b", &[]), ("c", &[]), ("x", &["c"]), ("y", &["b"]), ("z", &["a"])]);
        assert_eq!(crossings(&laid_out(&ladder, 9).unwrap()), 0);
        let diamond =
            dag(&[("a", &[]), ("b", &["a"]), ("c", &["a"]), ("d", &["b", "c"]), ("e", &["a", "d"])]);
        let layout = laid_out(&diamond, 9).unwrap();
        assert_eq!(crossings(&layout), 0);
        assert_eq!(layout.routes.iter().map(Vec::len).max(), Some(4), "the long edge bends twice");
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_above_the_top() {
        let layout = laid_out(&wide(6, 9, 3), 100).unwrap();
        for layer in &layout.layers {
            assert!(layer.iter().all(|place| layout.y[*place] >= BOX_HALF - 1e-3));
            assert!(layer.windows(2).all(|pair| layout.y[pair[1]] - layout.y[pair[0]] > 0.99));
        }
    }

    #[test]
    fn a_chain_is_straight() {
        let layout = laid_out(&wide(5, 1, 1), 0).unwrap();
        assert!(layout.y.iter().all(|y| (*y - layout.y[0]).abs() < 1e-3));
    }

    #[test]
    fn too_many_bends_are_refused() {
        let long = dag(&[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("d", &["a", "c"])]);
        assert!(laid_out(&long, 1).is_none());
        assert!(laid_out(&long, 2).is_some());
    }
}
