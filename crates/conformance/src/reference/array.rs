/// Row-major numbers; integers are numbers too.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
    /// Only of what is stored in codes.
    pub coded: Option<Coded>,
}

/// What codes stand for, and the scales that numbers of one block share.
#[derive(Debug, Clone, PartialEq)]
pub struct Coded {
    pub numbers: Vec<f64>,
    pub scales: Vec<f64>,
}

impl Array {
    pub fn new(shape: &[usize], data: Vec<f64>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "data does not fill the shape {shape:?}");
        Self { shape: shape.to_vec(), data, coded: None }
    }

    pub fn filled(shape: &[usize], with: f64) -> Self {
        Self::new(shape, vec![with; shape.iter().product()])
    }

    pub fn zeros_like(other: &Array) -> Self {
        Self::filled(&other.shape, 0.0)
    }

    pub fn rows(&self) -> usize {
        self.shape[0]
    }

    /// Elements in one row.
    pub fn cols(&self) -> usize {
        self.shape[1..].iter().product()
    }

    pub fn row(&self, row: usize) -> &[f64] {
        &self.data[row * self.cols()..(row + 1) * self.cols()]
    }

    pub fn row_mut(&mut self, row: usize) -> &mut [f64] {
        let cols = self.cols();
        &mut self.data[row * cols..(row + 1) * cols]
    }

    /// The entry of a vector as an index.
    pub fn index(&self, at: usize) -> usize {
        self.data[at] as usize
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Array {
        Array::new(&self.shape, self.data.iter().map(|&x| f(x)).collect())
    }

    /// Entry by entry with another of the same shape.
    pub fn zip(&self, other: &Array, f: impl Fn(f64, f64) -> f64) -> Array {
        assert_eq!(self.shape, other.shape, "shapes differ");
        Array::new(&self.shape, self.data.iter().zip(&other.data).map(|(&a, &b)| f(a, b)).collect())
    }

    pub fn plus(&self, other: &Array) -> Array {
        self.zip(other, |a, b| a + b)
    }
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "lengths differ");
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// `to += factor·from`.
pub fn add_scaled(to: &mut [f64], factor: f64, from: &[f64]) {
    assert_eq!(to.len(), from.len(), "lengths differ");
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}
