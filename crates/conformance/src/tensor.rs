//! Data as a backend takes it: typed, with a shape and an extent.

use half::{bf16, f16};
use plimsoll_graph::{Class, DType, Extent, Role, Shape, Storage, Value};
use plimsoll_runtime::Active;

use crate::Blocks;
use crate::reference::Array;

#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    F32(Vec<f32>),
    F64(Vec<f64>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
    I32(Vec<i32>),
    U32(Vec<u32>),
    Blocks(Blocks),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    pub shape: Shape,
    pub extent: Extent,
    pub data: Data,
}

impl Tensor {
    pub fn new(shape: &[usize], extent: Extent, data: Data) -> Self {
        let tensor = Self { shape: Shape::new(shape), extent, data };
        assert_eq!(tensor.len(), tensor.shape.elements(), "data does not fill the shape {shape:?}");
        tensor
    }

    /// All of it always in use: weights, gradients, tables.
    pub fn fixed(shape: &[usize], data: Vec<f32>) -> Self {
        Self::new(shape, Extent::Fixed, Data::F32(data))
    }

    /// One row for each token slot.
    pub fn tokens(rows: usize, cols: usize, data: Vec<f32>) -> Self {
        Self::new(&[rows, cols], Extent::TOKENS, Data::F32(data))
    }

    /// One number for each token slot: tokens, targets, positions.
    pub fn token_ints(data: Vec<i32>) -> Self {
        Self::new(&[data.len()], Extent::TOKENS, Data::I32(data))
    }

    /// Row ids for dropout.
    pub fn row_ids(data: Vec<u32>) -> Self {
        Self::new(&[data.len()], Extent::TOKENS, Data::U32(data))
    }

    pub fn rng_key(key: [u32; 4]) -> Self {
        Self::new(&[4], Extent::Fixed, Data::U32(key.to_vec()))
    }

    /// Where sequences begin and end, for up to `capacity` of them.
    pub fn boundaries(lengths: &[usize], capacity: usize) -> Self {
        let mut ends = vec![0];
        for length in lengths {
            ends.push(ends[ends.len() - 1] + *length as i32);
        }
        ends.resize(capacity + 1, 0);
        Self::new(&[capacity + 1], Extent::BOUNDARIES, Data::I32(ends))
    }

    pub fn len(&self) -> usize {
        match &self.data {
            Data::F32(d) => d.len(),
            Data::F64(d) => d.len(),
            Data::BF16(d) => d.len(),
            Data::F16(d) => d.len(),
            Data::I32(d) => d.len(),
            Data::U32(d) => d.len(),
            Data::Blocks(d) => d.elements,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn dtype(&self) -> DType {
        match self.data {
            Data::F32(_) => DType::F32,
            Data::Blocks(ref d) => d.element,
            Data::F64(_) => DType::F64,
            Data::BF16(_) => DType::BF16,
            Data::F16(_) => DType::F16,
            Data::I32(_) => DType::I32,
            Data::U32(_) => DType::U32,
        }
    }

    pub fn storage(&self) -> Storage {
        match &self.data {
            Data::Blocks(blocks) => blocks.storage(),
            _ => self.dtype().into(),
        }
    }

    /// As the graph describes it.
    pub fn value(&self) -> Value {
        Value {
            name: String::new(),
            shape: self.shape,
            storage: self.storage(),
            role: Role::Activation,
            extent: self.extent,
            layer: None,
            class: Class::NONE,
            slot: None,
        }
    }

    /// Elements in rows that are in use.
    pub fn active_len(&self, active: Active) -> usize {
        let rows = match self.extent {
            Extent::Fixed => return self.len(),
            Extent::Tokens(stream) => active.of(stream).tokens,
            Extent::Run { stream, start } => active.of(stream).tokens.saturating_sub(start).min(self.shape.rows()),
            Extent::Sequences(stream) => active.of(stream).sequences,
            Extent::Boundaries(stream) => active.of(stream).sequences + 1,
        };
        rows * self.shape.cols()
    }

    /// The rows in use as plain numbers; the reference never sees the others.
    pub fn array(&self, active: Active) -> Array {
        let len = self.active_len(active);
        let data = match &self.data {
            Data::F32(d) => d[..len].iter().map(|&x| f64::from(x)).collect(),
            Data::F64(d) => d[..len].to_vec(),
            Data::BF16(d) => d[..len].iter().map(|&x| f64::from(x)).collect(),
            Data::F16(d) => d[..len].iter().map(|&x| f64::from(x)).collect(),
            Data::I32(d) => d[..len].iter().map(|&x| f64::from(x)).collect(),
            Data::U32(d) => d[..len].iter().map(|&x| f64::from(x)).collect(),
            Data::Blocks(d) => d.numbers()[..len].to_vec(),
        };
        let mut shape = self.shape.dims().to_vec();
        if self.extent != Extent::Fixed {
            shape[0] = len / self.shape.cols();
        }
        let coded = match &self.data {
            Data::Blocks(blocks) => Some(blocks.coded()),
            _ => None,
        };
        Array { coded, ..Array::new(&shape, data) }
    }

    /// Its bytes, with rows beyond `active` overwritten by what no kernel can use unnoticed: not a
    /// number, or an index far outside every table.
    pub fn poisoned_bytes(&self, active: Active) -> Vec<u8> {
        let len = self.active_len(active);
        match &self.data {
            Data::F32(d) => words(d, len, f32::NAN, f32::to_le_bytes),
            Data::F64(d) => words(d, len, f64::NAN, f64::to_le_bytes),
            Data::BF16(d) => words(d, len, bf16::NAN, bf16::to_le_bytes),
            Data::F16(d) => words(d, len, f16::NAN, f16::to_le_bytes),
            Data::I32(d) => words(d, len, i32::MAX, i32::to_le_bytes),
            Data::U32(d) => words(d, len, u32::MAX, u32::to_le_bytes),
            Data::Blocks(d) => d.poisoned_bytes(len),
        }
    }

    pub fn from_bytes(value: &Value, bytes: &[u8]) -> Self {
        if value.storage.blocks.is_some() {
            let data = Data::Blocks(Blocks::from_bytes(value.storage, value.shape.elements(), bytes));
            return Self { shape: value.shape, extent: value.extent, data };
        }
        let data = match value.dtype() {
            DType::F32 => Data::F32(elements(bytes, f32::from_le_bytes)),
            DType::F64 => Data::F64(elements(bytes, f64::from_le_bytes)),
            DType::BF16 => Data::BF16(elements(bytes, bf16::from_le_bytes)),
            DType::F16 => Data::F16(elements(bytes, f16::from_le_bytes)),
            DType::I32 => Data::I32(elements(bytes, i32::from_le_bytes)),
            DType::U32 => Data::U32(elements(bytes, u32::from_le_bytes)),
            other => panic!("the suite does not read {} yet", other.name()),
        };
        Self { shape: value.shape, extent: value.extent, data }
    }

    /// The tensor a backend would hold for `value`; rows beyond those of the array are zero.
    pub fn from_array(value: &Value, array: &Array) -> Self {
        let mut data: Vec<f32> = array.data.iter().map(|&x| x as f32).collect();
        data.resize(value.shape.elements(), 0.0);
        Self { shape: value.shape, extent: value.extent, data: Data::F32(data) }.stored(value.dtype())
    }

    /// The float32 tensor rounded to the nearest numbers of a type. The reference and the backends see these, so
    /// what differs afterwards is the backend's own doing.
    pub fn stored(&self, dtype: DType) -> Self {
        let data = match dtype {
            DType::F32 => Data::F32(self.f32s().to_vec()),
            DType::BF16 => Data::BF16(self.f32s().iter().map(|&x| bf16::from_f32(x)).collect()),
            DType::F16 => Data::F16(self.f32s().iter().map(|&x| f16::from_f32(x)).collect()),
            other => panic!("numbers are not stored as {}", other.name()),
        };
        Self { shape: self.shape, extent: self.extent, data }
    }

    /// The float32 tensor as a state or a weight is stored.
    pub fn stored_as(&self, storage: Storage) -> Self {
        match storage.blocks {
            None => self.stored(storage.element),
            Some(_) => {
                let data = Data::Blocks(Blocks::encode(storage, self.f32s()));
                Self { shape: self.shape, extent: self.extent, data }
            }
        }
    }

    pub fn f32s(&self) -> &[f32] {
        match &self.data {
            Data::F32(d) => d,
            other => panic!("not float32: {other:?}"),
        }
    }
}

fn words<T: Copy, const B: usize>(data: &[T], active: usize, poison: T, bytes: fn(T) -> [u8; B]) -> Vec<u8> {
    let mut all = vec![0; data.len() * B];
    for (index, word) in all.as_chunks_mut::<B>().0.iter_mut().enumerate() {
        *word = bytes(if index < active { data[index] } else { poison });
    }
    all
}

fn elements<T, const B: usize>(bytes: &[u8], from: fn([u8; B]) -> T) -> Vec<T> {
    bytes.as_chunks::<B>().0.iter().map(|&chunk| from(chunk)).collect()
}
