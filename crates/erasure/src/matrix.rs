//! Generator matrices of the codes, and matrix inversion.
//!
//! The choice of the matrix determines whether other programs can read the fragments: ISA-L's
//! `gf_gen_rs_matrix` and `gf_gen_cauchy1_matrix`, liberasurecode's `make_systematic_matrix`.

use cairn_types::EcType;

use crate::galois::Field;

/// Rows of elements of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    field: Field,
    columns: usize,
    cells: Vec<u16>,
}

impl Matrix {
    fn zero(field: Field, rows: usize, columns: usize) -> Matrix {
        Matrix {
            field,
            columns,
            cells: vec![0; rows * columns],
        }
    }

    /// The generator matrix: one row per fragment, one column per data fragment; the first rows are
    /// the identity.
    pub(crate) fn generator(ec_type: EcType, data: usize, parity: usize) -> Matrix {
        match ec_type {
            EcType::IsaLRsVand => isa_l(data, parity, |matrix, row, column| {
                // 2^((row - data) * column), by ISA-L's recurrence of powers.
                let mut cell = 1;
                let mut base = 1;
                for _ in data..row {
                    base = matrix.field.multiply(base, 2);
                }
                for _ in 0..column {
                    cell = matrix.field.multiply(cell, base);
                }
                cell
            }),
            EcType::IsaLRsCauchy => isa_l(data, parity, |matrix, row, column| {
                matrix.field.inverse((row ^ column) as u16)
            }),
            EcType::LiberasurecodeRsVand => systematic_vandermonde(data, parity),
        }
    }

    pub(crate) fn field(&self) -> Field {
        self.field
    }

    pub(crate) fn row(&self, row: usize) -> &[u16] {
        &self.cells[row * self.columns..][..self.columns]
    }

    /// A matrix of the rows with these indexes.
    pub(crate) fn pick(&self, rows: &[usize]) -> Matrix {
        Matrix {
            field: self.field,
            columns: self.columns,
            cells: rows
                .iter()
                .flat_map(|row| self.row(*row))
                .copied()
                .collect(),
        }
    }

    /// The product of `row` and this matrix.
    pub(crate) fn multiply_row(&self, row: &[u16]) -> Vec<u16> {
        let mut product = vec![0; self.columns];
        for (factor, cells) in row.iter().zip(self.cells.chunks_exact(self.columns)) {
            for (sum, cell) in product.iter_mut().zip(cells) {
                *sum ^= self.field.multiply(*factor, *cell);
            }
        }
        product
    }

    /// The inverse of a square matrix by Gauss-Jordan elimination; `None` if it is singular.
    pub(crate) fn inverse(mut self) -> Option<Matrix> {
        let size = self.columns;
        let mut inverse = Matrix::zero(self.field, size, size);
        for i in 0..size {
            inverse.cells[i * size + i] = 1;
        }
        for i in 0..size {
            let pivot = (i..size).find(|row| self.cells[row * size + i] != 0)?;
            let factor = self.field.inverse(self.cells[pivot * size + i]);
            for matrix in [&mut self, &mut inverse] {
                matrix.swap_rows(pivot, i);
                matrix.scale_row(i, factor);
            }
            for row in (0..size).filter(|row| *row != i) {
                let factor = self.cells[row * size + i];
                self.add_row(i, row, factor);
                inverse.add_row(i, row, factor);
            }
        }
        Some(inverse)
    }

    fn swap_rows(&mut self, a: usize, b: usize) {
        for column in 0..self.columns {
            self.cells
                .swap(a * self.columns + column, b * self.columns + column);
        }
    }

    fn scale_row(&mut self, row: usize, factor: u16) {
        for cell in &mut self.cells[row * self.columns..][..self.columns] {
            *cell = self.field.multiply(*cell, factor);
        }
    }

    /// Adds `factor` times the row `from` to the row `to`.
    fn add_row(&mut self, from: usize, to: usize, factor: u16) {
        for column in 0..self.columns {
            let cell = self.cells[from * self.columns + column];
            self.cells[to * self.columns + column] ^= self.field.multiply(cell, factor);
        }
    }

    fn scale_column(&mut self, rows: std::ops::Range<usize>, column: usize, factor: u16) {
        for row in rows {
            let cell = &mut self.cells[row * self.columns + column];
            *cell = self.field.multiply(*cell, factor);
        }
    }

    fn add_column(&mut self, from: usize, to: usize, factor: u16) {
        for row in 0..self.cells.len() / self.columns {
            let cell = self.cells[row * self.columns + from];
            self.cells[row * self.columns + to] ^= self.field.multiply(cell, factor);
        }
    }
}

/// The identity, and below it `parity` rows whose elements `cell(matrix, row, column)` computes.
fn isa_l(data: usize, parity: usize, cell: impl Fn(&Matrix, usize, usize) -> u16) -> Matrix {
    let mut matrix = Matrix::zero(Field::Gf8, data + parity, data);
    for i in 0..data {
        matrix.cells[i * data + i] = 1;
    }
    for row in data..data + parity {
        for column in 0..data {
            matrix.cells[row * data + column] = cell(&matrix, row, column);
        }
    }
    matrix
}

/// A Vandermonde matrix (row i: 1, i, i^2, …; the first is 1, 0, 0, …), transformed by column
/// operations to an identity above and then to a first parity row of ones.
fn systematic_vandermonde(data: usize, parity: usize) -> Matrix {
    let field = Field::Gf16;
    let rows = data + parity;
    let mut matrix = Matrix::zero(field, rows, data);
    for row in 0..rows {
        let mut power = 1;
        for column in 0..data {
            matrix.cells[row * data + column] = power;
            power = field.multiply(power, row as u16);
        }
    }
    for i in 1..data {
        let pivot = (i..rows).find(|row| matrix.cells[row * data + i] != 0);
        // Any `data` rows of a Vandermonde matrix are independent, so a pivot always exists.
        matrix.swap_rows(pivot.unwrap_or(i), i);
        let factor = field.inverse(matrix.cells[i * data + i]);
        matrix.scale_column(0..rows, i, factor);
        for column in (0..data).filter(|column| *column != i) {
            let factor = matrix.cells[i * data + column];
            matrix.add_column(i, column, factor);
        }
    }
    for column in 0..data {
        let factor = field.inverse(matrix.cells[data * data + column]);
        matrix.scale_column(data..rows, column, factor);
    }
    matrix
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_times_its_inverse_is_the_identity() {
        for ec_type in EcType::ALL {
            let generator = Matrix::generator(ec_type, 10, 4);
            let picked = generator.pick(&[0, 11, 2, 3, 10, 5, 6, 12, 8, 13]);
            let inverse = picked.clone().inverse().unwrap();
            for i in 0..10 {
                let mut unit = vec![0; 10];
                unit[i] = 1;
                assert_eq!(
                    inverse.multiply_row(picked.row(i)),
                    unit,
                    "{ec_type} row {i}"
                );
            }
        }
    }

    #[test]
    fn a_singular_matrix_has_no_inverse() {
        let generator = Matrix::generator(EcType::IsaLRsVand, 4, 2);
        assert_eq!(generator.pick(&[0, 1, 2, 2]).inverse(), None);
    }
}
