//! Adafactor: second moments of a matrix from those of its rows and columns, one matrix behind another.

use plimsoll_graph::ops::{ADAFACTOR_PARTS, Adafactor};
use plimsoll_graph::{DType, GPU_PARTIAL_ROWS};
use plimsoll_runtime::RuntimeError;

use super::update::{master_address, site};
use super::{MODULE as NORM_MODULE, NORM_ROWS, NORM_THREADS, norm_rows};
use crate::call::{Args, Call, Operand, type_suffix};

const MODULE: &str = "optimizer_adafactor";
const THREADS: u32 = 256;
/// Fewer rows than this are not worth a part when columns are summed.
const PART_ROWS_MIN: usize = 16;

/// The step's workspace: sums of columns in parts, sums of squares of the parameter and of the step, four numbers.
struct Scratch {
    columns: u64,
    parameter_squares: u64,
    step_squares: u64,
    numbers: u64,
}

impl Scratch {
    fn new(call: &Call, cols: usize) -> Result<Self, RuntimeError> {
        let (start, planned) = call.workspace();
        let squares = GPU_PARTIAL_ROWS * size_of::<f64>();
        // Double precision first, where every address serves.
        let columns = start + (2 * squares + 4 * size_of::<f32>()) as u64;
        let end = columns + (ADAFACTOR_PARTS * cols * size_of::<f32>()) as u64;
        if end > start + planned as u64 {
            return Err(call.error(format!("needs {} bytes of workspace, {planned} were planned", end - start)));
        }
        let (step_squares, numbers) = (start + squares as u64, start + 2 * squares as u64);
        Ok(Self { columns, parameter_squares: start, step_squares, numbers })
    }
}

pub(crate) fn adafactor(op: &Adafactor, call: &Call) -> Result<(), RuntimeError> {
    let (p, g) = (call.output(0), call.output(1));
    let momentum = op.momentum_output().map(|at| call.output(at));
    let kernels = Kernels::new(call, &p, &g, momentum)?;
    let master = op.master_output().map(|at| call.output(at));
    let address = master_address(call, master)?;
    let scratch = Scratch::new(call, p.cols)?;
    for (index, rows) in op.matrices.iter().enumerate() {
        let span = |whole: &Operand| {
            let ptr = whole.at(rows.start, 0);
            Operand { ptr, rows: rows.len(), planned_rows: rows.len(), ..*whole }
        };
        let gradient = span(&g);
        let matrix = Matrix { op, call, scratch: &scratch, kernels: &kernels, index, g: gradient };
        let blocks = match op.factored {
            true => matrix.factored(rows.start)?,
            false => matrix.unfactored(rows.start)?,
        };
        let parts = match op.least_scale {
            Some(_) => square_sums(call, &span(master.as_ref().unwrap_or(&p)), scratch.parameter_squares)?,
            None => 0,
        };
        let args = Args::new()
            .ptr(scratch.parameter_squares)
            .u32(parts as u32)
            .ptr(scratch.step_squares)
            .u32(blocks as u32)
            .ptr(scratch.numbers)
            .ptr(call.input(2).ptr)
            .u64(gradient.len() as u64)
            .f32(op.least_scale.unwrap_or(0.0))
            .f32(op.clip_threshold)
            .f32(op.weight_decay);
        call.launch(MODULE, "adafactor_sizes", (1, 1, 1), THREADS, 0, args)?;
        let beta1 = op.beta1.unwrap_or(0.0);
        let args = Args::new()
            .ptr(p.ptr)
            .ptr(g.ptr)
            .ptr(momentum.map_or(0, |m| m.ptr))
            .ptr(address)
            .ptr(call.input(2).ptr)
            .ptr(call.input(3).ptr)
            .ptr(scratch.numbers)
            .u64((rows.start * p.cols) as u64)
            .u64(gradient.len() as u64)
            .u32(site(call))
            .f32(beta1 as f32)
            .f32((1.0 - beta1) as f32);
        let grid = gradient.len().div_ceil(THREADS as usize * 8).clamp(1, 1 << 16);
        call.launch(MODULE, &kernels.step, (grid as u32, 1, 1), THREADS, 0, args)?;
    }
    Ok(())
}

/// Sums of squares in parts; how many there are.
fn square_sums(call: &Call, matrix: &Operand, partial: u64) -> Result<usize, RuntimeError> {
    let (rows, parts) = norm_rows(&[matrix]);
    let args = Args::with_table(&rows, NORM_ROWS).u32(rows.len() as u32).ptr(partial);
    let kernel = format!("square_sums_{}", matrix.dtype.name());
    call.launch(NORM_MODULE, &kernel, (parts as u32, 1, 1), NORM_THREADS, 0, args)?;
    Ok(parts)
}

/// Names of the kernels for some types.
struct Kernels {
    gradient: &'static str,
    step: String,
}

impl Kernels {
    fn new(call: &Call, p: &Operand, g: &Operand, momentum: Option<Operand>) -> Result<Self, RuntimeError> {
        let parameter = type_suffix(p.dtype).ok_or_else(|| call.unsupported(p.dtype))?;
        if g.dtype != p.dtype && g.dtype != DType::F32 {
            return Err(call.unsupported(g.dtype));
        }
        let gradient = type_suffix(g.dtype).ok_or_else(|| call.unsupported(g.dtype))?;
        let state = match momentum.map_or(DType::F32, |momentum| momentum.dtype) {
            dtype @ (DType::F32 | DType::BF16) => dtype.name(),
            other => return Err(call.unsupported(other)),
        };
        Ok(Self { gradient, step: format!("adafactor_step_{parameter}_{gradient}_{state}") })
    }
}

/// One matrix or vector of a parameter.
struct Matrix<'a> {
    op: &'a Adafactor,
    call: &'a Call<'a>,
    scratch: &'a Scratch,
    kernels: &'a Kernels,
    index: usize,
    g: Operand,
}

impl Matrix<'_> {
    fn launch(&self, kernel: &str, grid: (u32, u32, u32), args: Args) -> Result<(), RuntimeError> {
        self.call.launch(MODULE, &format!("adafactor_{kernel}_{}", self.kernels.gradient), grid, THREADS, 0, args)
    }

    /// `hyper`, `clip` and what is added to squares.
    fn shared(&self, args: Args) -> Args {
        args.ptr(self.call.input(2).ptr).ptr(self.call.input(3).ptr).f32(self.op.eps)
    }

    /// Leaves `u` in the gradient's place, and sums of its squares in so many parts.
    fn factored(&self, first_row: usize) -> Result<usize, RuntimeError> {
        let Self { call, scratch, g, .. } = self;
        let (rows, cols) = (g.rows, g.cols);
        let (row, col) = (call.output(2), call.output(3));
        let (row, col) = (row.at(first_row, 0), col.at(self.index, 0));
        let args = Args::new().ptr(g.ptr).ptr(row).u32(cols as u32);
        self.launch("rows", (rows as u32, 1, 1), self.shared(args))?;
        let part_rows = rows.div_ceil(ADAFACTOR_PARTS).max(PART_ROWS_MIN);
        let parts = rows.div_ceil(part_rows);
        let strips = cols.div_ceil(THREADS as usize) as u32;
        let args = Args::new().ptr(g.ptr).ptr(scratch.columns).u32(rows as u32).u32(cols as u32).u32(part_rows as u32);
        self.launch("columns", (strips, parts as u32, 1), self.shared(args))?;
        let args = Args::new()
            .ptr(scratch.columns)
            .ptr(col)
            .u32(parts as u32)
            .u32(rows as u32)
            .u32(cols as u32)
            .ptr(call.input(2).ptr)
            .ptr(call.input(3).ptr);
        call.launch(MODULE, "adafactor_column_means", (strips, 1, 1), THREADS, 0, args)?;
        let args = Args::new().ptr(row).u32(rows as u32).ptr(scratch.numbers);
        call.launch(MODULE, "adafactor_rows_mean", (1, 1, 1), THREADS, 0, args)?;
        let block_rows = rows.div_ceil(GPU_PARTIAL_ROWS);
        let blocks = rows.div_ceil(block_rows);
        let args = Args::new()
            .ptr(g.ptr)
            .ptr(row)
            .ptr(col)
            .ptr(scratch.numbers)
            .ptr(scratch.step_squares)
            .u32(rows as u32)
            .u32(cols as u32)
            .u32(block_rows as u32);
        self.launch("scale", (blocks as u32, 1, 1), self.shared(args))?;
        Ok(blocks)
    }

    /// The same with a second moment of every element.
    fn unfactored(&self, first: usize) -> Result<usize, RuntimeError> {
        let Self { call, scratch, g, .. } = self;
        let len = g.len();
        let block_len = len.div_ceil(GPU_PARTIAL_ROWS).next_multiple_of(THREADS as usize);
        let blocks = len.div_ceil(block_len);
        let v = call.output(2).at(first, 0);
        let args = Args::new().ptr(g.ptr).ptr(v).ptr(scratch.step_squares).u64(len as u64).u64(block_len as u64);
        self.launch("elements", (blocks as u32, 1, 1), self.shared(args))?;
        Ok(blocks)
    }
}
