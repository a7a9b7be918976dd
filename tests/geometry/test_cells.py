import numpy as np

from gc25d.geometry.cells import count_by_cell


def test_each_cell_counts_its_own_pixels():
    pixels = np.zeros((2, 8, 12), bool)
    pixels[0, :4, 4:8] = True  # all of one cell
    pixels[1, 3:5, 11] = True  # one pixel of each of two cells
    expected = np.zeros((2, 2, 3), np.uint8)
    expected[0, 0, 1] = 16
    expected[1, :, 2] = 1
    np.testing.assert_array_equal(count_by_cell(pixels), expected)
    assert count_by_cell(pixels[0, :, ::-1])[0].tolist() == [0, 16, 0]
    assert count_by_cell(pixels).dtype == np.uint8
