//! Products of random shapes and strides against double precision, on every instruction set there is.

use super::level::{Baseline, Level};
use super::*;

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn number(&mut self) -> f32 {
        (self.next() & 0xffff) as f32 / 32_768.0 - 1.0
    }
}

/// A matrix somewhere in memory, with NaN wherever it has no element.
#[derive(Clone)]
struct Operand {
    memory: Vec<f32>,
    row_stride: usize,
    col_stride: usize,
}

/// Which neighbours are contiguous.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Order {
    Rows,
    Cols,
    Neither,
}

const ORDERS: [Order; 3] = [Order::Rows, Order::Cols, Order::Neither];

impl Operand {
    fn new(random: &mut Random, rows: usize, cols: usize, order: Order, gap: usize) -> Self {
        let (row_stride, col_stride) = match order {
            Order::Rows => (cols + gap, 1),
            Order::Cols => (1, rows + gap),
            Order::Neither => ((cols + gap) * 3, 3),
        };
        let len = if rows * cols == 0 { 0 } else { (rows - 1) * row_stride + (cols - 1) * col_stride + 1 };
        let mut operand = Self { memory: vec![f32::NAN; len], row_stride, col_stride };
        for (row, col) in (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col))) {
            operand.memory[row * row_stride + col * col_stride] = random.number();
        }
        operand
    }

    fn at(&self, row: usize, col: usize) -> f64 {
        f64::from(self.memory[row * self.row_stride + col * self.col_stride])
    }

    fn factor(&self) -> Factor {
        Factor { start: self.memory.as_ptr(), row_stride: self.row_stride, col_stride: self.col_stride }
    }
}

/// A product with its operands and what its result held.
struct Case {
    rows: usize,
    cols: usize,
    depth: usize,
    alpha: f32,
    left: Operand,
    right: Operand,
    bias: Vec<f32>,
    before: Operand,
    /// Whether to add what is there, and a bias.
    onto: (bool, bool),
}

impl Case {
    fn new(random: &mut Random, [rows, cols, depth]: [usize; 3], orders: [Order; 2], gap: usize) -> Self {
        Self {
            rows,
            cols,
            depth,
            alpha: [1.0, -0.5, 1.7][random.below(3)],
            left: Operand::new(random, rows, depth, orders[0], gap),
            right: Operand::new(random, depth, cols, orders[1], gap),
            bias: (0..cols).map(|_| random.number()).collect(),
            before: Operand::new(random, rows, cols, Order::Rows, gap),
            onto: (random.below(2) == 0, random.below(2) == 0),
        }
    }

    /// The result's memory after `run` has been handed the product.
    fn result(&self, threads: usize, run: impl Fn(Product, &Workers, PackingRoom)) -> Vec<f32> {
        let mut workers = Workers::new(Some(threads));
        workers.start().unwrap();
        // Garbage that would show, were it taken for an operand.
        let mut room = vec![f32::NAN; packing_bytes(&workers) / 4];
        let mut memory = self.before.memory.clone();
        let product = Product {
            rows: self.rows,
            cols: self.cols,
            depth: self.depth,
            alpha: self.alpha,
            left: self.left.factor(),
            right: self.right.factor(),
            result: memory.as_mut_ptr(),
            result_stride: self.before.row_stride,
            onto: match self.onto {
                (false, false) => Onto::Nothing,
                (true, false) => Onto::Present,
                (false, true) => Onto::Bias(self.bias.as_ptr()),
                (true, true) => Onto::PresentAndBias(self.bias.as_ptr()),
            },
        };
        run(product, &workers, PackingRoom::new(room.as_mut_ptr()));
        memory
    }

    fn check(&self, name: &str, got: &[f32]) {
        let stride = self.before.row_stride;
        for (at, (&got, &before)) in got.iter().zip(&self.before.memory).enumerate() {
            let (row, col) = (at / stride, at % stride);
            if col >= self.cols {
                assert_eq!(got.to_bits(), before.to_bits(), "{name}: wrote between rows {row} and {}", row + 1);
                continue;
            }
            let (mut sum, mut size) = (0.0, 0.0);
            for k in 0..self.depth {
                let term = f64::from(self.alpha) * self.left.at(row, k) * self.right.at(k, col);
                sum += term;
                size += term.abs();
            }
            let present = if self.onto.0 { f64::from(before) } else { 0.0 };
            let want = present + if self.onto.1 { f64::from(self.bias[col]) } else { 0.0 } + sum;
            let error = (f64::from(got) - want).abs();
            assert!(error <= 1e-5 * (size + 2.0), "{name}: {got} instead of {want} at {row}, {col}");
        }
    }
}

type Run = fn(Product, &Workers, PackingRoom);

fn with<L: Level>(product: Product, workers: &Workers, room: PackingRoom) {
    // SAFETY: `check_everywhere` asks for instructions that are there only; the case made the operands.
    unsafe { product.run_with::<L>(workers, room) };
}

fn check_everywhere(case: &Case, name: &str) {
    // SAFETY: the case made the operands, and room for all workers.
    case.check(name, &case.result(2, |product, workers, room| unsafe { product.run(workers, room) }));
    let mut runs: Vec<(&str, Run)> = vec![("baseline", with::<Baseline>)];
    #[cfg(target_arch = "x86_64")]
    {
        let level = crate::vector::level();
        if !matches!(level, crate::vector::Level::Baseline) {
            runs.push(("avx2", with::<level::Avx2>));
        }
        if matches!(level, crate::vector::Level::Avx512) {
            runs.push(("avx512", with::<level::Avx512>));
        }
    }
    for (level, run) in runs {
        let name = format!("{name} {level}");
        let alone = case.result(1, run);
        case.check(&name, &alone);
        for threads in [2, 3] {
            let together = case.result(threads, run);
            let same = alone.iter().zip(&together).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{name}: {threads} threads give other bits");
        }
    }
}

#[test]
fn random_shapes_and_strides() {
    let random = &mut Random(0x9e37_79b9_7f4a_7c15);
    // Nothing, one, sizes around tiles and vectors, and any.
    const SIZES: [usize; 16] = [0, 1, 2, 3, 7, 8, 13, 14, 15, 16, 17, 31, 32, 33, 57, 65];
    for number in 0..400 {
        let mut size = || if random.below(3) == 0 { random.below(90) } else { SIZES[random.below(16)] };
        let shape = [size(), size(), size()];
        let orders = [ORDERS[random.below(3)], ORDERS[random.below(3)]];
        let gap = [0, 0, 1, 5, 16][random.below(5)];
        let case = Case::new(random, shape, orders, gap);
        check_everywhere(&case, &format!("case {number}: {shape:?} {orders:?} gap {gap}"));
    }
}

/// Several runs of the depth and of the columns, blocks of packed rows, strides that conflict in the
/// caches, few rows, few columns, and enough work for several threads.
#[test]
fn seams_do_not_show() {
    let random = &mut Random(7);
    for shape in [[130, 70, 600], [33, 70, 1100], [64, 512, 512], [20, 900, 700], [200, 40, 130], [3, 300, 200]] {
        for left in [Order::Rows, Order::Cols] {
            for right in [Order::Rows, Order::Cols] {
                let case = Case::new(random, shape, [left, right], 0);
                check_everywhere(&case, &format!("{shape:?} {left:?} {right:?}"));
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_in_its_row() {
    let random = &mut Random(3);
    for order in [Order::Rows, Order::Cols] {
        let mut case = Case::new(random, [29, 45, 70], [order, order], 0);
        case.onto = (false, false);
        let bad = 17;
        let at = bad * case.left.row_stride + 69 * case.left.col_stride;
        for value in [f32::NAN, f32::INFINITY] {
            case.left.memory[at] = value;
            // SAFETY: the case made the operands, and room for all workers.
            let got = case.result(2, |product, workers, room| unsafe { product.run(workers, room) });
            for (row, line) in got.chunks(45).enumerate() {
                assert!(line.iter().all(|x| x.is_finite() == (row != bad)), "{order:?} {value} row {row}");
            }
        }
    }
}

#[test]
fn the_smallest_numbers_are_kept() {
    let random = &mut Random(4);
    let tiny = f32::from_bits(3);
    for order in [Order::Rows, Order::Cols] {
        let mut case = Case::new(random, [19, 40, 6], [order, order], 0);
        (case.onto, case.alpha) = ((false, false), 1.0);
        case.left.memory.fill(tiny);
        case.right.memory.fill(1.0);
        // SAFETY: the case made the operands, and room for all workers.
        let got = case.result(1, |product, workers, room| unsafe { product.run(workers, room) });
        assert!(got.iter().all(|&x| x == f32::from_bits(18)), "{order:?}: {:?}", got[0]);
    }
}
