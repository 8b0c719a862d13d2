"""What came of a run, by name; plain texts, which command lines read without torch."""

TARGETS = {
    "gap": "test loss − training loss",
    "error_gap": "training accuracy − test accuracy",
    "test_loss": "test loss",
    "test_error": "1 − test accuracy",
}
WORDS = {  # of outcomes in sentences
    "gap": "gap of the losses",
    "error_gap": "gap of the accuracies",
    "test_loss": "test loss",
    "test_error": "test error",
}
SIDE_BY_SIDE = ("gap", "error_gap", "test_error")  # they disagree: one of them alone misleads
LAST_EPOCH = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
TRAINING = ("train_loss", "train_accuracy")  # say how far training went, not what came of it
# What a table of networks may say of each without being told that it is an outcome.
KNOWN_OUTCOMES = (*LAST_EPOCH, "gap", "error_gap", "test_error")
VALIDATION = ("validation_loss", "validation_accuracy")  # None where a study has no such data
