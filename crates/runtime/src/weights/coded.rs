//! Matrices that other programs stored in few bits: 4-bit and 8-bit ones of bitsandbytes, fp8 of compressed-tensors.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use plimsoll_graph::{BlockFormat, Code, NESTED_SCALES, Scales, Shape};
use safetensors::tensor::Dtype;
use serde_json::Value as Json;

use super::read::{NotFinite, check_finite, in_parts, is_float, to_floats, unreadable};
use super::{Checkpoint, CodedPlace, TensorInfo, WeightError};
use crate::Backend;
use crate::codec::{code_bytes, decode_blocks, nested_scale};

/// Elements of a block of four bits.
const NF4_BLOCK: usize = 64;

/// How a tensor lies in the files.
pub(super) enum Layout<'a> {
    /// As numbers of a floating-point type.
    Plain(&'a TensorInfo),
    Coded(CodedTensor<'a>),
}

/// Codes and scales in tensors of their own.
pub(super) struct CodedTensor<'a> {
    files: &'a Checkpoint,
    code: Code,
    /// Elements that share a scale.
    block: usize,
    blocks: usize,
    codes: &'a TensorInfo,
    scales: StoredScales<'a>,
}

enum StoredScales<'a> {
    /// One for each block, or one for all of them.
    Floats(&'a TensorInfo),
    /// Codes, for so many of them a scale, and the offset of all.
    Nested { codes: &'a TensorInfo, scales: &'a TensorInfo, offset: f32 },
}

/// A module's name: its weight's without the last part.
fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

const DECODE_FIRST: &str = "use the model's folder in BF16, F16 or F32: `base` says what its weights are stored as";

impl Checkpoint {
    /// How a tensor of this shape is stored; fails where it is not there or cannot be read as it is stored.
    pub(super) fn layout(&self, name: &str, shape: &Shape) -> Result<Layout<'_>, WeightError> {
        let Some(info) = self.info(name) else { return Err(self.absent(name)) };
        let prefix = format!("{name}.quant_state.bitsandbytes__");
        let four = self.names().find_map(|other| other.strip_prefix(&prefix));
        match (four, info.dtype) {
            (Some("nf4"), _) => self.nf4(name, shape, info).map(Layout::Coded),
            (Some(other), _) => {
                let hint = "quantise it with bnb_4bit_quant_type=\"nf4\", or use the model's folder in BF16 and set `base: nf4`";
                Err(self.unsupported(name, format!("as {other} of bitsandbytes"), hint))
            }
            (None, Dtype::I8 | Dtype::F8_E4M3) => self.rows(name, shape, info).map(Layout::Coded),
            (None, _) => {
                let (info, path, _) = self.find(name, shape)?;
                let dtype = || format!("{:?}", info.dtype);
                match is_float(info.dtype) {
                    true => Ok(Layout::Plain(info)),
                    false => Err(WeightError::DType { path: path.to_owned(), name: name.to_owned(), dtype: dtype() }),
                }
            }
        }
    }

    /// Other formats put tensors of other names in a weight's place.
    fn absent(&self, name: &str) -> WeightError {
        let has = |part: &str| self.contains(&format!("{}.{part}", module(name)));
        let what = match () {
            () if has("qweight") && has("g_idx") => "as integers of GPTQ",
            () if has("qweight") => "as integers of GPTQ or AWQ",
            () if has("weight_packed") => "as packed integers of compressed-tensors",
            () => return self.no_tensor(name),
        };
        self.unsupported(name, what.to_owned(), DECODE_FIRST)
    }

    fn unsupported(&self, name: &str, stored: String, hint: &'static str) -> WeightError {
        let path = self.info(name).map_or(self.folder(), |info| self.path_of(info)).to_owned();
        WeightError::Stored { path, name: name.to_owned(), stored, hint }
    }

    /// A tensor that belongs to a weight, of so many elements and one of these types.
    fn companion(&self, name: &str, elements: &[usize], dtypes: &[Dtype]) -> Result<&TensorInfo, WeightError> {
        let info = self.info(name).ok_or_else(|| self.no_tensor(name))?;
        let (path, name) = (self.path_of(info).to_owned(), name.to_owned());
        if !dtypes.contains(&info.dtype) {
            return Err(WeightError::DType { path, name, dtype: format!("{:?}", info.dtype) });
        }
        if !elements.contains(&info.elements()) {
            return Err(WeightError::Shape { path, name, expected: elements[..1].to_vec(), found: info.shape.clone() });
        }
        Ok(info)
    }

    fn nf4<'a>(&'a self, name: &str, shape: &Shape, codes: &'a TensorInfo) -> Result<CodedTensor<'a>, WeightError> {
        let part = |part: &str| format!("{name}.{part}");
        let state = self.nf4_state(name, shape)?;
        let elements = shape.elements();
        if codes.bytes() != elements.div_ceil(2) as u64 {
            let (path, expected) = (self.path_of(codes).to_owned(), vec![elements.div_ceil(2), 1]);
            return Err(WeightError::Shape { path, name: name.to_owned(), expected, found: codes.shape.clone() });
        }
        if !elements.is_multiple_of(NF4_BLOCK) {
            let stored = format!("in nf4 with {elements} elements, which are no whole blocks of {NF4_BLOCK},");
            return Err(self.unsupported(name, stored, DECODE_FIRST));
        }
        self.check_map(&part("quant_map"), Code::Nf4)?;
        let blocks = elements / NF4_BLOCK;
        let scales = match state.offset {
            None => StoredScales::Floats(self.companion(&part("absmax"), &[blocks], &[Dtype::F32])?),
            Some(offset) => {
                self.check_map(&part("nested_quant_map"), Code::DynamicSigned)?;
                let groups = blocks.div_ceil(NESTED_SCALES);
                StoredScales::Nested {
                    codes: self.companion(&part("absmax"), &[blocks], &[Dtype::U8])?,
                    scales: self.companion(&part("nested_absmax"), &[groups], &[Dtype::F32])?,
                    offset,
                }
            }
        };
        Ok(CodedTensor { files: self, code: Code::Nf4, block: NF4_BLOCK, blocks, codes, scales })
    }

    /// What bitsandbytes says of a tensor in JSON.
    fn nf4_state(&self, name: &str, shape: &Shape) -> Result<Nf4State, WeightError> {
        const STATE_BYTES_MAX: u64 = 64 << 10;
        let state_name = format!("{name}.quant_state.bitsandbytes__nf4");
        let info = self.info(&state_name).ok_or_else(|| self.no_tensor(&state_name))?;
        let path = self.path_of(info);
        let malformed = |reason: String| WeightError::format(path, reason);
        if info.dtype != Dtype::U8 || info.bytes() > STATE_BYTES_MAX {
            return Err(malformed(format!("`{state_name}` is no text: {:?}, {} bytes", info.dtype, info.bytes())));
        }
        let mut text = vec![0; info.bytes() as usize];
        self.read_stored(info, 0, &mut text)?;
        let state: Json =
            serde_json::from_slice(&text).map_err(|error| malformed(format!("`{state_name}` {error}")))?;
        let blocks = |key: &str, expected: usize| match state[key].as_u64() {
            Some(found) if found != expected as u64 => {
                let stored = format!("in nf4 with a `{key}` of {found}");
                let hint = "quantise it with blocks of 64 and nested ones of 256, the defaults, or use the model's folder in \
                            BF16 and set `base: nf4`";
                Err(self.unsupported(name, stored, hint))
            }
            Some(_) => Ok(()),
            None => Err(malformed(format!("`{state_name}` has no `{key}`"))),
        };
        blocks("blocksize", NF4_BLOCK)?;
        let found: Vec<usize> =
            state["shape"].as_array().into_iter().flatten().map(|dim| dim.as_u64().unwrap_or(0) as usize).collect();
        if found != shape.dims() {
            let (path, name) = (path.to_owned(), name.to_owned());
            return Err(WeightError::Shape { path, name, expected: shape.dims().to_vec(), found });
        }
        if !self.contains(&format!("{name}.nested_absmax")) {
            return Ok(Nf4State { offset: None });
        }
        blocks("nested_blocksize", NESTED_SCALES)?;
        let offset = state["nested_offset"].as_f64().map(|offset| offset as f32).filter(|offset| offset.is_finite());
        Ok(Nf4State {
            offset: Some(offset.ok_or_else(|| malformed(format!("`{state_name}` has no `nested_offset`")))?),
        })
    }

    /// That codes stand for what they are expected to.
    fn check_map(&self, name: &str, code: Code) -> Result<(), WeightError> {
        let expected = code.numbers();
        let info = self.companion(name, &[expected.len()], &[Dtype::F32])?;
        let mut bytes = vec![0; 4 * expected.len()];
        self.read_stored(info, 0, &mut bytes)?;
        let mut found = vec![0.0; expected.len()];
        to_floats(&bytes, Dtype::F32, &mut found);
        // Tables computed on other devices may differ in the last bit.
        let same = |(found, expected): (&f32, &f32)| (found - expected).abs() <= expected.abs() * f32::EPSILON;
        match found.iter().zip(expected).all(same) {
            true => Ok(()),
            false => Err(self.unsupported(name, "with other numbers than bitsandbytes'".to_owned(), DECODE_FIRST)),
        }
    }

    /// Eight bits with a scale for each row, or for all.
    fn rows<'a>(&'a self, name: &str, shape: &Shape, codes: &'a TensorInfo) -> Result<CodedTensor<'a>, WeightError> {
        self.find(name, shape)?;
        let (part, has) = (
            |part: &str| format!("{}.{part}", module(name)),
            |part: &str| self.contains(&format!("{}.{part}", module(name))),
        );
        let rows = shape.rows();
        let floats = [Dtype::F32, Dtype::BF16, Dtype::F16];
        let (code, scales) = match codes.dtype {
            Dtype::I8 if has("SCB") => (Code::Int8, self.companion(&part("SCB"), &[rows], &floats[..1])?),
            Dtype::F8_E4M3 if has("weight_scale") => {
                let (scales, found) =
                    (part("weight_scale"), self.info(&part("weight_scale")).map(TensorInfo::elements));
                if found.is_some_and(|found| found != rows && found != 1) {
                    let stored = format!("in fp8 with {} scales for {rows} rows", found.unwrap_or(0));
                    return Err(self.unsupported(name, stored, DECODE_FIRST));
                }
                (Code::E4m3, self.companion(&scales, &[rows, 1], &floats)?)
            }
            dtype => {
                let what = match dtype {
                    Dtype::F8_E4M3 if has("weight_scale_inv") => "in fp8 with scales of square blocks",
                    Dtype::F8_E4M3 => "in fp8 without a `weight_scale`",
                    _ if has("weight_scale") => "as int8 of compressed-tensors",
                    _ => "as int8 without the `SCB` of bitsandbytes",
                };
                return Err(self.unsupported(name, what.to_owned(), DECODE_FIRST));
            }
        };
        let scales = StoredScales::Floats(scales);
        Ok(CodedTensor { files: self, code, block: shape.cols(), blocks: rows, codes, scales })
    }
}

struct Nf4State {
    /// Of nested scales.
    offset: Option<f32>,
}

impl CodedTensor<'_> {
    /// Whether it can become a weight stored so without being rounded anew.
    pub(super) fn check_as(&self, name: &str, format: &BlockFormat) -> Result<(), WeightError> {
        let nested = matches!(self.scales, StoredScales::Nested { .. });
        if (self.code, self.block) != (format.code, format.elements) {
            let stored = format!("in {}, this run's base is {}", name_of(self.code), name_of(format.code));
            let hint = "set `base` to the format of the folder, or use the model's folder in BF16";
            return Err(self.files.unsupported(name, stored, hint));
        }
        if format.scales == Scales::Nested && !nested {
            let hint = "quantise it with bnb_4bit_use_double_quant=True, or use the model's folder in BF16 and set `base: nf4`";
            return Err(self.files.unsupported(name, "in nf4 without double quantisation".to_owned(), hint));
        }
        Ok(())
    }

    /// Copies codes and scales to their places.
    pub(super) fn load(&self, name: &str, place: &CodedPlace, backend: &mut dyn Backend) -> Result<(), WeightError> {
        self.check_as(name, &place.format)?;
        let (path, file) = self.files.file_of(self.codes);
        let read_part = |done: usize, bytes: &mut [u8]| {
            file.read_exact_at(bytes, self.codes.offset + done as u64)?;
            self.check_codes(bytes)
        };
        let read = backend.write_with(place.all_codes(), &mut |done, bytes| in_parts(done, bytes, &read_part))?;
        read.map_err(|error| unreadable(name, path, error))?;
        match (&self.scales, place.format.scales) {
            (StoredScales::Nested { codes, scales, offset }, Scales::Nested) => {
                let mut bytes = vec![0; self.blocks];
                self.files.read_stored(codes, 0, &mut bytes)?;
                let nested = self.floats(name, scales, 0..self.blocks.div_ceil(NESTED_SCALES))?;
                place.write_nested_scales(&bytes, &nested, *offset, backend)?;
            }
            _ => place.write_plain_scales(&self.read_scales(name, 0..self.blocks)?, backend)?,
        }
        Ok(())
    }

    /// Some codes of e4m3 are no numbers.
    fn check_codes(&self, codes: &[u8]) -> io::Result<()> {
        let bad = self.code == Code::E4m3 && codes.iter().fold(false, |bad, code| bad | (code & 0x7f == 0x7f));
        if bad { Err(io::Error::new(io::ErrorKind::InvalidData, NotFinite)) } else { Ok(()) }
    }

    /// Scales of some blocks, those of nested ones computed.
    fn read_scales(&self, name: &str, blocks: Range<usize>) -> Result<Vec<f32>, WeightError> {
        let (codes, nested, offset) = match &self.scales {
            StoredScales::Floats(info) if info.elements() == 1 => {
                return Ok(vec![self.floats(name, info, 0..1)?[0]; blocks.len()]);
            }
            StoredScales::Floats(info) => return self.floats(name, info, blocks),
            StoredScales::Nested { codes, scales, offset } => (codes, scales, offset),
        };
        let mut bytes = vec![0; blocks.len()];
        self.files.read_stored(codes, blocks.start as u64, &mut bytes)?;
        let groups = blocks.start / NESTED_SCALES..blocks.end.div_ceil(NESTED_SCALES);
        let nested = self.floats(name, nested, groups.clone())?;
        let scale =
            |(block, &code): (usize, &u8)| nested_scale(code, nested[block / NESTED_SCALES - groups.start], *offset);
        Ok((blocks.start..).zip(&bytes).map(scale).collect())
    }

    /// Numbers of a tensor of scales, which must be finite.
    fn floats(&self, name: &str, info: &TensorInfo, range: Range<usize>) -> Result<Vec<f32>, WeightError> {
        let size = info.dtype.bitsize() / 8;
        let mut bytes = vec![0; range.len() * size];
        self.files.read_stored(info, (range.start * size) as u64, &mut bytes)?;
        let mut numbers = vec![0.0; range.len()];
        to_floats(&bytes, info.dtype, &mut numbers);
        match numbers.iter().all(|number| number.is_finite()) {
            true => Ok(numbers),
            false => {
                let path = self.files.path_of(info).to_owned();
                Err(WeightError::NotFinite { path, name: format!("{name} (its scales)") })
            }
        }
    }

    /// The numbers from the element `first` on, decoded.
    pub(super) fn numbers(&self, name: &str, first: usize, out: &mut [f32]) -> Result<(), WeightError> {
        if out.is_empty() {
            return Ok(());
        }
        let blocks = first / self.block..(first + out.len()).div_ceil(self.block);
        let format = BlockFormat { elements: self.block, code: self.code, scales: Scales::F32 };
        let mut bytes = vec![0; code_bytes(&format, blocks.len() * self.block)];
        let from = code_bytes(&format, blocks.start * self.block) as u64;
        self.files.read_stored(self.codes, from, &mut bytes)?;
        let scales = self.read_scales(name, blocks.clone())?;
        decode_blocks(&format, bytes, &scales, first - blocks.start * self.block, out);
        check_finite(bytemuck::cast_slice(out), plimsoll_graph::DType::F32)
            .map_err(|error| unreadable(name, self.files.path_of(self.codes), error))
    }
}

/// What a run file calls a format.
fn name_of(code: Code) -> &'static str {
    match code {
        Code::Nf4 => "nf4",
        Code::Int8 => "int8",
        Code::E4m3 => "fp8",
        Code::DynamicSigned | Code::DynamicUnsigned => "dynamic codes",
    }
}
