int tinyblas_answer(void);
