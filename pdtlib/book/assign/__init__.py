"""Labs and exercises for a class: handed out without their answers, graded alike, collected in one table."""

from pdtlib.book.assign.collect import collect, to_csv
from pdtlib.book.assign.grading import grade_folder, students
from pdtlib.book.assign.handout import hand_out, read_assignment

__all__ = ["collect", "grade_folder", "hand_out", "read_assignment", "students", "to_csv"]
